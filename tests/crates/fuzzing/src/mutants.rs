//! Generates inputs that are nearly valid.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::strategy::Union;

/// Decimal numbers at which arithmetic and allocations often go wrong.
const NUMBERS: [&str; 17] = [
    "0",
    "1",
    "-1",
    "+1",
    "127",
    "256",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "340282366920938463463374607431768211456",
    "1e308",
    "0.1",
];

/// Binary numbers at which arithmetic and allocations often go wrong. A mutation writes the first 1, 2, 4 or 8 bytes of
/// such a number into the input. At the end of the input it writes fewer.
const WORDS: [[u8; 8]; 5] = [
    [0; 8],
    [0xff; 8],
    [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    [0, 0, 0, 0, 0, 0, 0, 0x80],
    [1, 0, 0, 0, 0, 0, 0, 0],
];

/// How many mutations an input gets: a number that is drawn from this list. Mostly it is one, because a second mutation
/// often makes the input so invalid that the parser never reaches the first mutation.
const MUTATIONS: [usize; 8] = [1, 1, 1, 1, 2, 2, 3, 6];
const LONGEST_REPEAT: usize = 64 * 1024;

/// Generates inputs by changing valid ones.
#[derive(Clone, Debug)]
pub struct Mutants {
    seeds: BoxedStrategy<Vec<u8>>,
    tokens: Vec<String>,
}

/// Bytes that `Debug` shows as a byte string literal, so that a failing input can be copied into a test.
#[derive(Clone, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// One change to an input. An [`Index`] stands for a position in any input: it is scaled to the input's length.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Cut(Index, Index),
    Insert(Index, Vec<u8>),
    /// Cuts the input off at the first position, and appends the part of another input that begins at the second
    /// position.
    Splice(Index, Vec<u8>, Index),
    Repeat(Index, Index, u16),
    /// Replaces a decimal number in the input by this one.
    Number(Index, &'static str),
    Word(Index, [u8; 8], Index),
}

impl Mutants {
    /// Mutants of fixed inputs.
    pub fn of<T: AsRef<[u8]>>(seeds: impl IntoIterator<Item = T>) -> Self {
        let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|seed| seed.as_ref().to_owned()).collect();
        Self::from(select(seeds))
    }

    /// Mutants of generated inputs.
    pub fn from<T: Into<Vec<u8>> + 'static>(seeds: impl Strategy<Value = T> + 'static) -> Self {
        Self { seeds: seeds.prop_map(Into::into).boxed(), tokens: vec![String::new()] }
    }

    /// Adds texts that mutations then also insert, for instance keywords of the parser.
    #[must_use]
    pub fn with_tokens(mut self, tokens: &[&str]) -> Self {
        self.tokens.extend(tokens.iter().map(|&token| token.to_owned()));
        self
    }

    /// A strategy for inputs: mostly mutated ones, some unchanged ones, and some of entirely random bytes.
    pub fn bytes(&self) -> BoxedStrategy<Bytes> {
        let mutations = MUTATIONS.map(|count| vec(self.mutation(), count).boxed());
        let spoiled = (self.seeds.clone(), Union::new(mutations)).prop_map(|(input, mutations)| {
            mutations.into_iter().fold(input, |input, mutation| mutation.apply(input))
        });
        prop_oneof![
            1 => vec(any::<u8>(), 0..300),
            1 => self.seeds.clone(),
            8 => spoiled,
        ]
        .prop_map(Bytes)
        .boxed()
    }

    /// Like [`bytes`](Self::bytes), but the inputs are text: bytes that are not UTF-8 become replacement characters.
    pub fn text(&self) -> BoxedStrategy<String> {
        let text = self.bytes().prop_map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
        prop_oneof![1 => any::<String>(), 9 => text].boxed()
    }

    fn mutation(&self) -> BoxedStrategy<Mutation> {
        let at = any::<Index>;
        let token = select(self.tokens.clone()).prop_map(String::into_bytes);
        let inserted = prop_oneof![
            2 => token,
            1 => vec(any::<u8>(), 1..8),
            1 => any::<char>().prop_map(|c| c.to_string().into_bytes()),
        ];
        prop_oneof![
            1 => (at(), 0..8_u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
            1 => (at(), at()).prop_map(|(from, to)| Mutation::Cut(from, to)),
            1 => (at(), inserted).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
            1 => (at(), self.seeds.clone(), at())
                .prop_map(|(at, other, from)| Mutation::Splice(at, other, from)),
            1 => (at(), at(), 1..300_u16)
                .prop_map(|(from, to, times)| Mutation::Repeat(from, to, times)),
            2 => (at(), select(&NUMBERS[..])).prop_map(|(at, number)| Mutation::Number(at, number)),
            1 => (at(), select(&WORDS[..]), at())
                .prop_map(|(at, word, width)| Mutation::Word(at, word, width)),
        ]
        .boxed()
    }
}

impl Mutation {
    fn apply(self, mut input: Vec<u8>) -> Vec<u8> {
        let place = |at: Index, input: &[u8]| at.index(input.len() + 1);
        match self {
            Self::Flip(at, bit) if !input.is_empty() => *at.get_mut(&mut input) ^= 1 << bit,
            Self::Flip(..) => {}
            Self::Cut(from, to) => drop(input.drain(range(from, to, &input))),
            Self::Insert(at, bytes) => {
                let at = place(at, &input);
                drop(input.splice(at..at, bytes));
            }
            Self::Splice(at, other, from) => {
                input.truncate(place(at, &input));
                input.extend_from_slice(&other[place(from, &other)..]);
            }
            Self::Repeat(from, to, times) => {
                let range = range(from, to, &input);
                let (end, piece) = (range.end, input[range].to_owned());
                let times = usize::from(times).min(LONGEST_REPEAT / piece.len().max(1));
                drop(input.splice(end..end, piece.repeat(times)));
            }
            Self::Number(at, number) => {
                let numbers = numbers(&input);
                if !numbers.is_empty() {
                    drop(input.splice(at.get(&numbers).clone(), number.bytes()));
                }
            }
            Self::Word(at, word, width) => {
                let at = place(at, &input);
                let width = [1, 2, 4, 8][width.index(4)];
                input[at..].iter_mut().zip(&word[..width]).for_each(|(old, new)| *old = *new);
            }
        }
        input
    }
}

/// A range within the input. Both ends are random, and most ranges are short.
fn range(from: Index, to: Index, input: &[u8]) -> std::ops::Range<usize> {
    let from = from.index(input.len() + 1);
    let most = (input.len() - from).min(1 << to.index(10));
    from..from + to.index(most + 1)
}

fn numbers(input: &[u8]) -> Vec<std::ops::Range<usize>> {
    let is_digit = |at: usize| input.get(at).is_some_and(u8::is_ascii_digit);
    let starts = (0..input.len()).filter(|&at| is_digit(at) && (at == 0 || !is_digit(at - 1)));
    starts.map(|start| start..(start..).find(|&at| !is_digit(at)).unwrap_or(start)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;

    use super::*;

    #[test]
    fn numbers_are_found() {
        assert_eq!(numbers(b"7a:12 x345"), [0..1, 3..5, 7..10]);
        assert!(numbers(b"x").is_empty() && numbers(b"").is_empty());
    }

    /// Checks that inputs of every kind are generated. If one kind were missing, fuzz targets would test less than they
    /// seem to.
    #[test]
    fn inputs_are_of_all_kinds() {
        const SEED: &str = "gen=00042 abc";
        let inputs = Mutants::of([SEED, "second"]).with_tokens(&["TOKEN"]).text();
        let mut runner = TestRunner::deterministic();
        let found: Vec<String> = (0..2_000)
            .map(|_| inputs.new_tree(&mut runner).expect("no filter").current())
            .collect();
        let some = |what: &dyn Fn(&str) -> bool| found.iter().any(|text| what(text));
        assert!(some(&|text| text == SEED), "valid");
        assert!(some(&|text| text.contains("18446744073709551615")), "extreme");
        assert!(some(&|text| text.contains("TOKEN") && text.contains("gen")), "inserted");
        assert!(some(&|text| text.starts_with("gen=") && text.ends_with("cond")), "spliced");
        assert!(some(&|text| SEED.starts_with(text) && text.len() > 2 && text != SEED), "cut");
        assert!(some(&|text| text.matches("abc").count() > 2), "repeated");
        assert!(some(&|text| text.starts_with("gen") && text.contains('\u{fffd}')), "no text");
        assert!(found.iter().all(|text| text.len() < 1024 * 1024), "short");
    }
}
