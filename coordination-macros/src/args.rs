//! The arguments in the parentheses of the attribute: name templates and `key = value`.
//!
//! Everything that can be checked without the function is checked here, at compile time and with
//! the span of the fault. A fault does not end the reading: [`Args::parse`] goes on after the
//! next comma, so that one build shows all faults.

use std::time::Duration;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::quote_spanned;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{Error, Expr, Ident, Lit, LitStr, Path, Result, Token, parenthesized, token};

use crate::errors::Errors;
use crate::nearest;

const KEYS: [&str; 9] =
    ["coordinator", "crate", "guard", "map_err", "name", "on_lost", "permits", "shared", "timeout"];

const NO_TEMPLATE: &str =
    "a name template is missing: write the name of the lock, as in `#[synchronized(\"vol-<id>\")]`";

const SHARED_AND_SHARED: &str =
    "`shared` alone asks for a share of each name; `shared(\"..\")` is for some of them";

const SHARED_OR_PERMITS: &str = "`shared` and `permits` exclude each other: a share of a lock goes to any number of \
                                 callers, a permit to as many as `permits` says";

const NO_PLACEHOLDERS: &str = "`name = ..` takes a text as it stands, which would be one name for all calls; leave out `name =`, so that it is a \
                               template, in which a mark that belongs to the name is written twice, as in `<<`";

const DURATION: &str = "a duration is a number of seconds, or numbers with units out of `d`, `h`, `m`, `s` and \
                        `ms`, the largest first, as in `0.5`, `500ms`, `2m` or `1h30m`";

const GUARD: &str =
    "`guard` is a name for the guard in the body, without quotes, as in `guard = guard`";

const CRATE: &str = "`crate` is the path of the crate `coordination`, without quotes, as in `crate = other::coordination`";

/// The arguments of one `#[synchronized]`.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) names: Vec<Name>,
    /// An expression of type `Duration`; `None` waits for ever.
    pub(crate) timeout: Option<TokenStream>,
    /// `None`: the global one.
    pub(crate) coordinator: Option<Expr>,
    pub(crate) manner: Manner,
    /// The name that the guard has inside the body.
    pub(crate) guard: Option<Ident>,
    pub(crate) on_lost: Option<OnLost>,
    /// Makes the function's error of ours; `None`: by `From`.
    pub(crate) map_err: Option<Expr>,
    /// Where the library is; `None`: `::coordination`.
    pub(crate) library: Option<Path>,
    seen: Vec<String>,
}

/// The name of a lock, and whether it is taken as a share beside others that are not.
pub(crate) struct Name {
    pub(crate) text: Text,
    pub(crate) is_shared: bool,
}

/// Where a name comes from.
pub(crate) enum Text {
    Template(LitStr),
    Expression(Expr),
}

/// How the locks of the names are acquired.
#[derive(Default)]
pub(crate) enum Manner {
    /// As exclusive locks.
    #[default]
    Exclusive,
    /// As shared locks.
    Shared,
    /// As permits of semaphores that have this many.
    Permits(Expr),
}

/// What becomes of the body when the lock is lost.
#[derive(Clone, Copy)]
pub(crate) enum OnLost {
    Cancel,
    Finish,
}

impl Args {
    /// Reads the arguments. An argument that could not be read is missing in the result, and `errors` has the reason.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Self {
        let mut args = Self::default();
        let read = |input: ParseStream| {
            args.read(input, errors);
            Ok(())
        };
        // Only tokens that `read` left over could fail here, and it takes all of them.
        if let Err(error) = read.parse2(tokens) {
            errors.push(error);
        }
        args
    }

    fn read(&mut self, input: ParseStream, errors: &mut Errors) {
        while !input.is_empty() {
            let argument = self.argument(input).and_then(|()| end_of_argument(input));
            if let Err(error) = argument {
                errors.push(error);
                skip_argument(input);
            }
        }
        // With another fault, the template may be what could not be read.
        if self.names.is_empty() && errors.is_empty() {
            errors.push(Error::new(Span::call_site(), NO_TEMPLATE));
        }
    }

    fn argument(&mut self, input: ParseStream) -> Result<()> {
        if input.peek(LitStr) {
            let text = Text::Template(input.parse()?);
            self.names.push(Name { text, is_shared: false });
            return Ok(());
        }
        if !input.peek(Ident::peek_any) {
            return Err(input.error(format!(
                "expected a name template (a string literal) or `key = value`; {}",
                known_keys()
            )));
        }
        let key = input.call(Ident::parse_any)?;
        if key == "shared" && input.peek(token::Paren) {
            return self.some_shared(&key, input);
        }
        if !input.peek(Token![=]) && !is_key(&key) {
            return Err(not_a_name(&key, input));
        }
        self.check_key(&key)?;
        if key == "shared" {
            return self.shared(input);
        }
        if !input.peek(Token![=]) {
            return Err(Error::new(key.span(), format!("`{key}` needs a value: `{key} = ..`")));
        }
        input.parse::<Token![=]>()?;
        self.value(&key, input)
    }

    fn check_key(&mut self, key: &Ident) -> Result<()> {
        let text = key.to_string();
        if !is_key(key) {
            let hint = nearest::hint(&text, KEYS);
            let problem = format!("unknown argument `{text}`{hint}; {}", known_keys());
            return Err(Error::new(key.span(), problem));
        }
        if self.seen.contains(&text) && text != "name" {
            return Err(Error::new(key.span(), format!("`{text}` is given twice")));
        }
        let has = |other: &str| self.seen.iter().any(|seen| seen == other);
        let problem = match text.as_str() {
            "shared" if has("permits") => Some(SHARED_OR_PERMITS),
            "shared" if has("shared(..)") => Some(SHARED_AND_SHARED),
            "permits" if has("shared") || has("shared(..)") => Some(SHARED_OR_PERMITS),
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(Error::new(key.span(), problem));
        }
        self.seen.push(text);
        Ok(())
    }

    fn shared(&mut self, input: ParseStream) -> Result<()> {
        if input.peek(Token![=]) {
            return Err(input.error("`shared` takes no value: its name alone asks for a share"));
        }
        self.manner = Manner::Shared;
        Ok(())
    }

    /// `shared("tree", name = NAME)`: shares of these names, beside others that are not shared.
    fn some_shared(&mut self, key: &Ident, input: ParseStream) -> Result<()> {
        let inside;
        parenthesized!(inside in input);
        let read = self.shared_names(key, &inside);
        if read.is_err() {
            // What is left there would be a fault of its own.
            drop(inside.parse::<TokenStream>());
        }
        read
    }

    fn shared_names(&mut self, key: &Ident, inside: ParseStream) -> Result<()> {
        if self.seen.iter().any(|seen| seen == "permits") {
            return Err(Error::new(key.span(), SHARED_OR_PERMITS));
        }
        if self.seen.iter().any(|seen| seen == "shared") {
            return Err(Error::new(key.span(), SHARED_AND_SHARED));
        }
        self.seen.push("shared(..)".to_owned());
        while !inside.is_empty() {
            let text = shared_name(inside)?;
            self.names.push(Name { text, is_shared: true });
            end_of_argument(inside)?;
        }
        Ok(())
    }

    fn value(&mut self, key: &Ident, input: ParseStream) -> Result<()> {
        match key.to_string().as_str() {
            "coordinator" => self.coordinator = Some(input.parse()?),
            "crate" => self.library = Some(unquoted(CRATE, input, Path::parse_mod_style)?),
            "guard" => self.guard = Some(unquoted(GUARD, input, Ident::parse)?),
            "map_err" => self.map_err = Some(input.parse()?),
            "name" => {
                let text = expression(input)?;
                self.names.push(Name { text, is_shared: false });
            }
            "on_lost" => self.on_lost = Some(on_lost(input)?),
            "permits" => self.manner = Manner::Permits(input.parse()?),
            _ => self.timeout = Some(timeout(input.parse()?)?),
        }
        Ok(())
    }
}

fn shared_name(input: ParseStream) -> Result<Text> {
    if input.peek(LitStr) {
        return Ok(Text::Template(input.parse()?));
    }
    let key = input.call(Ident::parse_any);
    let key = key.map_err(|error| {
        Error::new(error.span(), "`shared(..)` takes names: string literals, or `name = ..`")
    })?;
    if key != "name" || !input.peek(Token![=]) {
        return Err(not_a_name(&key, input));
    }
    input.parse::<Token![=]>()?;
    expression(input)
}

/// The expression that gives a name. A literal that looks like a template was meant as one.
fn expression(input: ParseStream) -> Result<Text> {
    let name: Expr = input.parse()?;
    if let Expr::Lit(literal) = as_it_stands(&name)
        && let Lit::Str(text) = &literal.lit
        && text.value().contains(['<', '>', '{', '}'])
    {
        return Err(Error::new(text.span(), NO_PLACEHOLDERS));
    }
    Ok(Text::Expression(name))
}

fn is_key(key: &Ident) -> bool {
    KEYS.iter().any(|known| key == known)
}

/// What begins with `start` may be a constant, a macro or a call.
fn not_a_name(start: &Ident, input: ParseStream) -> Error {
    let rest = match input {
        _ if input.peek(Token![!]) => "!(..)",
        _ if input.peek(Token![::]) => "::..",
        _ if input.peek(token::Paren) => "(..)",
        _ => "",
    };
    let problem = format!(
        "`{start}{rest}` is not a string literal; write `name = {start}{rest}` where a constant or another \
         expression gives the name; as arguments, {}",
        known_keys()
    );
    Error::new(start.span(), problem)
}

fn known_keys() -> String {
    format!("known are `{}`", KEYS.join("`, `"))
}

fn end_of_argument(input: ParseStream) -> Result<()> {
    if !input.is_empty() {
        input.parse::<Token![,]>()?;
    }
    Ok(())
}

fn skip_argument(input: ParseStream) {
    while !input.is_empty() {
        let comma = input.peek(Token![,]);
        if input.parse::<TokenTree>().is_err() || comma {
            return;
        }
    }
}

/// Reads what is easily taken for a string.
fn unquoted<T>(
    problem: &str,
    input: ParseStream,
    read: impl FnOnce(ParseStream) -> Result<T>,
) -> Result<T> {
    read(input).map_err(|error| Error::new(error.span(), problem))
}

fn on_lost(input: ParseStream) -> Result<OnLost> {
    const PROBLEM: &str = "`on_lost` is \"cancel\" or \"finish\", in quotes";
    let value: LitStr = input.parse().map_err(|error| Error::new(error.span(), PROBLEM))?;
    match value.value().as_str() {
        "cancel" => Ok(OnLost::Cancel),
        "finish" => Ok(OnLost::Finish),
        _ => Err(Error::new(value.span(), PROBLEM)),
    }
}

fn timeout(value: Expr) -> Result<TokenStream> {
    match ungrouped(&value) {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => literal_timeout(text),
            _ => Err(Error::new(
                value.span(),
                format!(
                    "`timeout` is a string, as in `timeout = \"5s\"`, or an expression of type `Duration`; {DURATION}"
                ),
            )),
        },
        _ => Ok(quote_spanned!(value.span()=> #value)),
    }
}

/// What an expression only borrows, or makes another type of, as `.to_owned()` does.
fn as_it_stands(expression: &Expr) -> &Expr {
    match ungrouped(expression) {
        Expr::Paren(paren) => as_it_stands(&paren.expr),
        Expr::Reference(reference) => as_it_stands(&reference.expr),
        Expr::MethodCall(call) if call.args.is_empty() => as_it_stands(&call.receiver),
        other => other,
    }
}

/// What a `macro_rules` macro passes on is wrapped in an invisible group.
fn ungrouped(expression: &Expr) -> &Expr {
    match expression {
        Expr::Group(group) => ungrouped(&group.expr),
        other => other,
    }
}

fn literal_timeout(text: &LitStr) -> Result<TokenStream> {
    let duration = duration(&text.value()).ok_or_else(|| Error::new(text.span(), DURATION))?;
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    let span = text.span().resolved_at(Span::mixed_site());
    Ok(quote_spanned!(span=> ::core::time::Duration::new(#seconds, #nanos)))
}

/// Reads what the options of a URL take too.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    if let Some(seconds) = decimal(text) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let (mut sum, mut rest, mut units) = (None::<Duration>, text, &UNITS[..]);
    while !rest.is_empty() {
        let (seconds, smaller, after) = part(rest, units)?;
        sum =
            Some(sum.unwrap_or_default().checked_add(Duration::try_from_secs_f64(seconds).ok()?)?);
        (rest, units) = (after, smaller);
    }
    sum
}

/// A unit's name, and how many seconds a number of it is.
type Unit = (&'static str, fn(f64) -> f64);

/// The largest first.
const UNITS: [Unit; 5] = [
    ("d", |number| number * 86_400.0),
    ("h", |number| number * 3600.0),
    ("m", |number| number * 60.0),
    ("s", |number| number),
    ("ms", |number| number / 1000.0),
];

/// A number and one of these units, in seconds, with the smaller units and the text that are left.
fn part<'t>(text: &'t str, units: &'static [Unit]) -> Option<(f64, &'static [Unit], &'t str)> {
    let (number, rest) = text.split_at(text.find(|c: char| c.is_ascii_lowercase())?);
    let end = rest.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(rest.len());
    let (unit, after) = rest.split_at(end);
    let place = units.iter().position(|(name, _)| *name == unit)?;
    let (_, in_seconds) = units.get(place)?;
    Some((in_seconds(decimal(number)?), units.get(place + 1..)?, after))
}

/// Stricter than `f64::from_str`, which takes signs, exponents, `inf` and `nan`.
fn decimal(text: &str) -> Option<f64> {
    let plain = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.parse().ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_the_shared_names_is_one_fault() {
        for text in [
            r#"permits = 3, shared("b")"#,
            r#"shared, shared("b"), "c""#,
            r#"shared(NAME, "b"), "c""#,
        ] {
            let mut errors = Errors::default();
            Args::parse(text.parse().expect("Rust tokens"), &mut errors);
            let faults = errors.or(()).expect_err("one fault");
            assert_eq!(faults.into_iter().count(), 1, "{text}");
        }
    }

    #[test]
    fn reads_durations_with_and_without_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("2d", 172_800_000),
            ("1h30m", 5_400_000),
            ("1h0.5s", 3_600_500),
            ("0.5", 500),
            ("0", 0),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_duration() {
        for text in [
            "", "s", ".", "-1", "+1s", "NaN", "inf", "1e3", "5 s", "5S", "5w", "1.2.3", "30m1h",
            "1h2h", "1h30",
        ] {
            assert_eq!(duration(text), None, "{text:?}");
        }
    }

    #[test]
    fn goes_on_after_a_fault() {
        let mut errors = Errors::default();
        let tokens: TokenStream =
            r#"colour = (1, 2), "a", timeout = "x", timeout = "1s", guard = g"#
                .parse()
                .expect("Rust tokens");
        let args = Args::parse(tokens, &mut errors);
        assert_eq!(args.names.len(), 1);
        assert!(args.guard.is_some());
        let faults = errors.or(()).expect_err("three faults");
        let problems: Vec<String> = faults.into_iter().map(|fault| fault.to_string()).collect();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].contains("unknown argument `colour`"));
        assert!(problems[1].contains("500ms"));
        assert!(problems[2].contains("given twice"));
    }

    #[test]
    fn a_template_is_not_taken_for_a_name() {
        for (text, is_fine) in [
            (r#"name = "a", shared(name = "b")"#, true),
            (r#"name = concat!("<", "a")"#, true),
            (r#"name = "vol-<id>""#, false),
            (r#"name = "vol-{id}""#, false),
            (r#"shared(name = "vol-<id>")"#, false),
            (r#"name = "vol-<id>".to_owned()"#, false),
            (r#"name = &("vol-{id}")"#, false),
            (r#"name = "vol-<id>".replace("<id>", id)"#, true),
        ] {
            let mut errors = Errors::default();
            Args::parse(text.parse().expect("Rust tokens"), &mut errors);
            assert_eq!(errors.is_empty(), is_fine, "{text}");
        }
    }
}
