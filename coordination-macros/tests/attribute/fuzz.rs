//! Whatever is written in an attribute: rustc must get errors to show, never a panic or half a program.
//!
//! What the library reads at run time too, names with placeholders and durations, has to mean the same.

use coordination_fuzzing::{Mutants, as_literal, run};
use proc_macro2::{Span, TokenStream};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestCaseResult;
use syn::parse::ParseStream;
use syn::punctuated::Punctuated;
use syn::{Expr, ExprMacro, Ident, ItemFn, LitInt, LitStr, Token};

use crate::args::duration;
use crate::expand;
use crate::template::{Scope, render};

const ARGUMENTS: [&str; 10] = [
    r#""vol-<id>""#,
    r#""vol-<id>", "snap-{snap.name}", timeout = "5s""#,
    r#""a", shared, guard = g, on_lost = "cancel""#,
    r#""a", permits = 2 * n, coordinator = self.coordinator.clone()"#,
    r#""a", crate = ::some::path, on_lost = "finish""#,
    r#"timeout = Duration::from_secs(5), r"raw <f_name>","#,
    r#""{id:>width$}", timeout = "0.5""#,
    r#"shared = true, colour = (1, 2), 'c', "a""#,
    "",
    "guard = r#type",
];

const ARGUMENT_TOKENS: [&str; 14] = [
    ",",
    "=",
    "\"",
    "(",
    ")",
    "shared",
    "permits = 1",
    "guard = g",
    "<",
    ">",
    "{",
    "}",
    "r#\"<id>\"#",
    "::",
];

const ITEMS: [&str; 7] = [
    "async fn f(id: u64, snap: &Snap) -> Result<(), E> { g(id).await?; Ok(()) }",
    "pub(crate) fn f<'a, T: Into<String>>(&mut self, (a, mut b): (u8, T), [x, ..]: [u8; 2]) -> coordination::Result<u8> where T: 'a { return Ok(a); }",
    "fn f(id: u64) -> Pin<Box<dyn Future<Output = Result<u8, E>> + Send + 'static>> { Box::pin(async move { let id = id; let __ret: Result<u8, E> = { Ok(1) }; __ret }) }",
    "#[inline] /// doc\n async fn r#fn(r#type: u8, _: u8, Point { x, y: z }: Point) -> Result<()> { #![allow(dead_code)] Ok(()) }",
    "async unsafe extern \"C\" fn f(mut self: Box<Self>, id: impl Display) {}",
    "fn f();",
    "struct S { id: u64 }",
];

const ITEM_TOKENS: [&str; 13] = [
    "async ",
    "fn ",
    "->",
    "Result<(), E>",
    "impl ",
    "self",
    "{",
    "}",
    "(",
    ")",
    "id: u8,",
    "r#",
    "'a",
];

const TEMPLATES: [&str; 9] = [
    "vol-<id>",
    "{ id }",
    "<self.0.1>-{snap[name]}{snap[0]}",
    "<self.share.id()>",
    "<r#type><type><f_name>",
    "{id:08x}{id:>width$.1$}",
    "<<literal>>{{x}}",
    "{snap[a>b:}]}",
    "<id.f_name>",
];

const TEMPLATE_TOKENS: [&str; 16] = [
    "<",
    ">",
    "{",
    "}",
    "<<",
    "}}",
    "[",
    "]",
    ".",
    ":",
    "()",
    "$",
    "é",
    "r#",
    "id",
    "99999999999999999999",
];

const NAMES: [&str; 4] = ["id", "snap", "width", "é_9"];

#[derive(Clone, Debug)]
enum Input {
    Attribute {
        arguments: String,
        item: String,
    },
    Template(String),
    /// Parts whose meaning is known: text, or the number of a name.
    Known(Vec<std::result::Result<String, usize>>),
    Duration(String),
}

fn inputs() -> impl Strategy<Value = Input> {
    let arguments = Mutants::of(ARGUMENTS).with_tokens(&ARGUMENT_TOKENS).text();
    let item = prop_oneof![
        select(&ITEMS[..]).prop_map(str::to_owned),
        Mutants::of(ITEMS).with_tokens(&ITEM_TOKENS).text(),
    ];
    let template = Mutants::of(TEMPLATES).with_tokens(&TEMPLATE_TOKENS).text();
    let part = prop_oneof![
        any::<String>().prop_map(Ok),
        select(&TEMPLATE_TOKENS[..]).prop_map(|text| Ok(text.to_owned())),
        (0..NAMES.len()).prop_map(Err),
    ];
    let durations = Mutants::of(["500ms", "5s", "2m", "1h", "0.25", "10", "1h30m", "2d12h"]);
    prop_oneof![
        4 => (arguments, item).prop_map(|(arguments, item)| Input::Attribute { arguments, item }),
        3 => template.prop_map(Input::Template),
        2 => vec(part, 0..6).prop_map(Input::Known),
        1 => durations.with_tokens(&["ms", "h", "d", ".", "e"]).text().prop_map(Input::Duration),
    ]
}

#[test]
fn fuzz_attribute() {
    // syn calls itself for each operator of an expression, as does what it returns when it is dropped.
    let deep = std::thread::Builder::new().stack_size(256 * 1024 * 1024).spawn(|| {
        run("fuzz_attribute", &inputs(), |input| match input {
            Input::Attribute { arguments, item } => any_attribute(&arguments, &item),
            Input::Template(source) => any_template(&source),
            Input::Known(parts) => known_template(&parts),
            Input::Duration(text) => any_duration(&text),
        });
    });
    if let Err(panic) = deep.expect("a thread").join() {
        std::panic::resume_unwind(panic);
    }
}

/// Longer ones than anybody writes, and no deeper than the stack.
const LONGEST: usize = 4 * 1024;

/// What is a function before is functions and errors after.
fn any_attribute(arguments: &str, item: &str) -> TestCaseResult {
    if arguments.len() + item.len() > LONGEST {
        return Ok(());
    }
    let (Ok(arguments), Ok(item)) = (arguments.parse::<TokenStream>(), item.parse::<TokenStream>())
    else {
        return Ok(());
    };
    let is_function = syn::parse2::<ItemFn>(item.clone()).is_ok();
    let expanded = expand::synchronized(arguments, item);
    prop_assert!(!is_function || syn::parse2::<syn::File>(expanded.clone()).is_ok(), "{expanded}");
    Ok(())
}

fn scope() -> Scope {
    let mut scope = Scope::new(&Ident::new("resize", Span::call_site()));
    for name in NAMES.into_iter().chain(["self"]) {
        scope.bind(&Ident::new(name, Span::call_site()));
    }
    scope.bind(&Ident::new_raw("type", Span::call_site()));
    scope
}

fn expression(source: &str) -> syn::Result<TokenStream> {
    render(&LitStr::new(source, Span::call_site()), &scope())
}

fn any_template(source: &str) -> TestCaseResult {
    let Ok(expression) = expression(source) else { return Ok(()) };
    prop_assert!(syn::parse2::<Expr>(expression.clone()).is_ok(), "{expression}");
    // These are understood here only.
    let is_common = !source.contains(char::is_whitespace) && !source.contains([':', '(', '#']);
    let at_run_time = source.parse::<coordination::Template>();
    prop_assert!(!is_common || at_run_time.is_ok(), "{at_run_time:?}");
    Ok(())
}

/// Both kinds of templates give the same name.
fn known_template(parts: &[std::result::Result<String, usize>]) -> TestCaseResult {
    let (mut source, mut expected) = (String::new(), String::new());
    for part in parts {
        match part {
            Ok(text) => {
                expected.push_str(text);
                source.push_str(&as_literal(text));
            }
            Err(name) => {
                expected.push_str(NAMES[*name]);
                source.push_str(&format!("<{}>", NAMES[*name]));
            }
        }
    }
    let values: serde_json::Map<_, _> =
        NAMES.iter().map(|&name| (name.to_owned(), name.into())).collect();
    let at_run_time = source.parse::<coordination::Template>();
    let at_run_time = at_run_time.and_then(|template| template.render(&values));
    match expression(&source) {
        Ok(expression) => {
            prop_assert_eq!(formatted(expression), Ok(expected.clone()), "{}", source);
            prop_assert_eq!(at_run_time.ok(), Some(expected), "{}", source);
        }
        Err(_) => prop_assert!(expected.is_empty() && at_run_time.is_err(), "{source}"),
    }
    Ok(())
}

/// What `::std::format!("..", a, b)` makes, where each variable has its own name as its value.
fn formatted(expression: TokenStream) -> Result<String, String> {
    let call: ExprMacro = syn::parse2(expression).map_err(|error| error.to_string())?;
    let arguments = |input: ParseStream| {
        let format: LitStr = input.parse()?;
        input.parse::<Option<Token![,]>>()?;
        Ok((format.value(), Punctuated::<Ident, Token![,]>::parse_terminated(input)?))
    };
    let (format, names) = call.mac.parse_body_with(arguments).map_err(|error| error.to_string())?;
    let (mut text, mut rest) = (String::new(), format.as_str());
    while let Some(at) = rest.find(['{', '}']) {
        let (before, marked) = rest.split_at(at);
        text.push_str(before);
        rest = match marked.strip_prefix("{{").map(|rest| ("{", rest)) {
            Some((brace, rest)) => {
                text.push_str(brace);
                rest
            }
            None if marked.starts_with("}}") => {
                text.push('}');
                &marked[2..]
            }
            None => {
                let (number, rest) = marked[1..].split_once('}').ok_or("a brace is open")?;
                let number =
                    syn::parse_str::<LitInt>(number).and_then(|number| number.base10_parse());
                let number: usize = number.map_err(|error| error.to_string())?;
                text.push_str(&names.get(number).ok_or("no such argument")?.to_string());
                rest
            }
        };
    }
    Ok(text + rest)
}

/// The option of a URL takes the same.
fn any_duration(text: &str) -> TestCaseResult {
    let json = serde_json::json!({ "ttl": text });
    let at_run_time = serde_json::from_value::<coordination::Config>(json);
    prop_assert_eq!(duration(text), at_run_time.ok().and_then(|config| config.ttl));
    Ok(())
}
