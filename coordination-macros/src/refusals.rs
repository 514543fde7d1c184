//! Functions that cannot be synchronized as they stand, and what to do instead.

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Error, Ident, Signature};

use crate::errors::Errors;

const SECOND: &str = "two `#[synchronized]` on one function take their locks in the order in which they stand: against a \
                      function with the other order, both would wait for ever; give all names to one attribute, as in \
                      `#[synchronized(shared(\"tree\"), \"leaf-<id>\")]`";

const RUNTIME: &str = "an attribute above this one, as `#[tokio::test]` or `#[tokio::main]`, has made this a plain \
                       function, which would take its lock before there is a runtime; put that attribute below \
                       `#[synchronized]`";

/// All reasons that do not depend on what the function returns.
pub(crate) fn all(
    signature: &Signature,
    attributes: &[Attribute],
    statements: &TokenStream,
    errors: &mut Errors,
) {
    qualifiers(signature, errors);
    second(signature, attributes, statements, errors);
    if signature.asyncness.is_none() && is_runtime(statements) {
        errors.push(Error::new(signature.ident.span(), RUNTIME));
    }
}

fn qualifiers(signature: &Signature, errors: &mut Errors) {
    if let Some(constness) = &signature.constness {
        let problem = "a `const fn` cannot be synchronized, as a lock is taken at run time; leave out `const`";
        errors.push(Error::new_spanned(constness, problem));
    }
    if let Some(abi) = &signature.abi {
        let problem = "an `extern` function cannot be synchronized; put the attribute on a \
                       Rust function that it calls";
        errors.push(Error::new_spanned(abi, problem));
    }
}

/// Two attributes take their locks in the order in which they stand, and not in the order of all functions.
fn second(
    signature: &Signature,
    attributes: &[Attribute],
    statements: &TokenStream,
    errors: &mut Errors,
) {
    let is_ours = |attribute: &&Attribute| {
        attribute.path().segments.last().is_some_and(|last| last.ident == "synchronized")
    };
    if let Some(second) = attributes.iter().find(is_ours) {
        errors.push(Error::new_spanned(second, SECOND));
    } else if contains(statements, &|ident| ident == "__private") {
        // Under whatever name, the one above has been expanded.
        errors.push(Error::new(signature.ident.span(), SECOND));
    }
}

/// Whether this is what `#[tokio::test]` and `#[tokio::main]` make of the body of an `async fn`.
fn is_runtime(statements: &TokenStream) -> bool {
    let start = statements.clone().into_iter().take(4).map(|token| token.to_string());
    start.eq(["let", "body", "=", "async"]) && contains(statements, &|ident| ident == "block_on")
}

/// Whether such an identifier is anywhere among the tokens.
pub(crate) fn contains(tokens: &TokenStream, is_it: &impl Fn(&Ident) -> bool) -> bool {
    tokens.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => is_it(&ident),
        TokenTree::Group(group) => contains(&group.stream(), is_it),
        TokenTree::Literal(literal) => is_formatted(&literal.to_string(), is_it),
        TokenTree::Punct(_) => false,
    })
}

/// Whether a text, as a format string, names it, be it as a width: `"{it:>it$}"`.
fn is_formatted(text: &str, is_it: &impl Fn(&Ident) -> bool) -> bool {
    let placeholders = text.split('{').skip(1).filter_map(|after| after.split('}').next());
    let mut words =
        placeholders.flat_map(|it| it.split(|c: char| !c.is_alphanumeric() && c != '_'));
    words.any(|word| syn::parse_str(word).is_ok_and(|ident: Ident| is_it(&ident)))
}
