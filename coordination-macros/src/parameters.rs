//! Makes the body own the function's parameters.
//!
//! Closures and async blocks capture what they name, field by field; but a function owns all of its parameters. So that the body
//! owns them too, it begins with what rustc itself makes of an `async fn`: a `let` for each parameter, in their order. The
//! parameters are dropped in the opposite order, after the variables of the body, as in a function.
//!
//! These `let`s run once the lock is held. Until then the names of locks are made from the captured parameters, so that the body's
//! future keeps no second copy of them while it waits. Only a variable that a pattern binds has to be bound earlier, if a name
//! uses it.
//!
//! ```text
//! fn f(id: u32, (a, _): Pair, mut text: String) {       fn f(id: u32, __arg1: Pair, text: String) {
//!     <body>                                                 { let id = id;
//! }                                                            let __arg1 = __arg1; let (a, _) = __arg1;
//!                                                              let mut text = text; <body> } }
//! ```

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::punctuated::Punctuated;
use syn::{Attribute, FnArg, Ident, Local, Meta, Pat, PatIdent, PatType, Stmt, Token};

use crate::refusals::contains;

/// What the function was given, on its way into the body.
#[derive(Default)]
pub(crate) struct Parameters {
    /// The inputs of the function, each of which has a name.
    pub(crate) inputs: Punctuated<FnArg, Token![,]>,
    /// The statements that take them, for the body, and which parameter each takes where it has a name.
    taken: Vec<(Option<Ident>, TokenStream)>,
    /// The same where the body does not begin: they are dropped in the same order.
    pub(crate) given_up: TokenStream,
    /// The patterns that take a parameter apart. What they bind is there once they are taken.
    pub(crate) patterns: Vec<Pat>,
}

impl Parameters {
    pub(crate) fn new(inputs: &Punctuated<FnArg, Token![,]>) -> Self {
        let mut parameters = Self::default();
        for (number, input) in inputs.iter().enumerate() {
            let mut input = input.clone();
            match &mut input {
                FnArg::Receiver(receiver) => parameters.receive(&receiver.self_token),
                FnArg::Typed(parameter) => parameters.take(parameter, number),
            }
            parameters.inputs.push(input);
        }
        parameters
    }

    /// What `#[async_trait]` has made of them.
    pub(crate) fn made(statements: &[Stmt]) -> Self {
        let taken = vec![(None, quote!(#(#statements)*))];
        let given_up = statements.iter().enumerate().map(|(number, it)| given_up(it, number));
        Self { taken, given_up: given_up.collect(), ..Self::default() }
    }

    /// The statements that take them, for the body. Those that `is_used` outside of it need not be used there.
    pub(crate) fn taken(&self, is_used: impl Fn(&Ident) -> bool) -> TokenStream {
        let statements = self.taken.iter().map(|(parameter, statement)| {
            let used = parameter.as_ref().filter(|parameter| is_used(parameter));
            let allow =
                used.map(|_| quote_spanned!(Span::mixed_site()=> #[allow(unused_variables)]));
            quote!(#allow #statement)
        });
        statements.collect()
    }

    /// `self` cannot be bound anew. Named as a whole it is captured as a whole.
    fn receive(&mut self, receiver: &Token![self]) {
        let whole = quote_spanned!(Span::mixed_site()=> let _ = &#receiver;);
        self.given_up.extend(whole.clone());
        self.taken.push((None, whole));
    }

    fn take(&mut self, parameter: &mut PatType, number: usize) {
        let attributes = attributes(parameter);
        let is_there = attributes.iter().filter(|attribute| is_cfg(attribute));
        let own = format_ident!("__arg{number}", span = Span::mixed_site());
        if let Pat::Ident(PatIdent { by_ref: None, mutability, ident, subpat: None, .. }) =
            &mut *parameter.pat
        {
            let mutability = mutability.take();
            self.given_up
                .extend(quote_spanned!(Span::mixed_site()=> #(#is_there)* let #own = #ident;));
            let taken = quote_spanned! {Span::mixed_site()=>
                #(#attributes)* let #mutability #ident = #ident;
            };
            self.taken.push((Some(ident.clone()), taken));
            return;
        }
        let name = Pat::Verbatim(own.to_token_stream());
        let pattern = std::mem::replace(&mut *parameter.pat, name);
        let whole = quote_spanned!(Span::mixed_site()=> #(#is_there)* let #own = #own;);
        self.given_up.extend(whole.clone());
        self.taken.push((None, whole));
        // Whoever is not named is still dropped in turn.
        if !matches!(pattern, Pat::Wild(_)) {
            let parts = quote_spanned!(Span::mixed_site()=> #(#attributes)* let #pattern = #own;);
            self.taken.push((None, parts));
            self.patterns.push(pattern);
        }
    }
}

/// A statement of theirs where the body does not begin.
fn given_up(statement: &Stmt, number: usize) -> TokenStream {
    let Stmt::Local(Local { attrs, init: Some(init), .. }) = statement else {
        return quote!(#statement);
    };
    let own = format_ident!("__given{number}", span = Span::mixed_site());
    let whole = &init.expr;
    quote_spanned!(Span::mixed_site()=> #(#attrs)* let #own = #whole;)
}

/// The parameter's attributes that are for its variable. Those of lints move there; whether it is there at all holds for both.
fn attributes(parameter: &mut PatType) -> Vec<Attribute> {
    let variable = parameter.attrs.iter().filter(|it| is_lint(it) || is_cfg(it));
    let variable = variable.cloned().collect();
    parameter.attrs.retain(|attribute| is_cfg(attribute) || !is_lint(attribute));
    variable
}

fn is_lint(attribute: &Attribute) -> bool {
    is_one_of(attribute, &["allow", "deny", "expect", "forbid", "warn"])
}

fn is_cfg(attribute: &Attribute) -> bool {
    is_one_of(attribute, &["cfg"])
}

/// Whether it is one of these, or, as `#[cfg_attr(unix, allow(unused))]`, becomes one.
fn is_one_of(attribute: &Attribute, names: &[&str]) -> bool {
    let is_it = |ident: &Ident| names.iter().any(|name| ident == name);
    match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg_attr") => contains(&list.tokens, &is_it),
        meta => meta.path().get_ident().is_some_and(is_it),
    }
}
