//! The code that the attribute leaves behind.
//!
//! ```text
//! async fn resize(id: Uuid) -> Result<(), StorageError> {
//!     let wanted = match __private::global() {
//!         Ok(coordinator) => __private::in_order([coordinator.lock(format!("vol-{0}", id))]),
//!         Err(error) => Err(error),
//!     };
//!     let outcome = match __private::acquire(wanted, timeout, OnLost::Cancel).await {
//!         Ok(held) => {
//!             let guard = held.guard();                       // only with `guard = guard`
//!             let ran = held.run(async move { <body> }).await;
//!             held.release(ran).await
//!         }
//!         Err(error) => Err(error),
//!     };
//!     __private::outcome(outcome)
//! }
//! ```
//!
//! With `shared` it is `__private::shared(coordinator.lock(..))`, and with `permits = n` it is
//! `coordinator.semaphore(.., n)`; the rest stays as it is.
//!
//! What happens at run time is in the library's module `__private`, so that the code in the user's
//! function stays this small. A plain `fn` gets the same from `__private::blocking`, without the
//! `await`s and with a closure for the body.
//!
//! # Why it looks this way
//!
//! * The body is a block of its own, so `return` and `?` leave the body and the release still runs.
//! * Names are rendered before that block takes the parameters.
//! * Every token has the context `mixed_site`: `held` never meets a `held` of the user, and lints
//!   that are about written code keep away. The tokens of the user keep their spans.
//! * `E: From<Error>` is asked for in one place, `outcome`, with the span of the return type, so
//!   that an error type without it is one error, and there.
//! * An async block does not know what type it is to return. A `return` that never runs, as in
//!   `tracing` and `async-trait`, tells it first, so that coercions in the body work.

use proc_macro2::{Delimiter, Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Error, Ident, Result};

use crate::args::{Args, Manner, OnLost};
use crate::errors::Errors;
use crate::function::{Body, Function, Kind};
use crate::template;

/// The synchronized function; where something is wrong, the function as it was and the errors.
pub(crate) fn synchronized(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand(arguments, item.clone()).unwrap_or_else(|errors| {
        let errors = errors.into_compile_error();
        quote!(#item #errors)
    })
}

fn expand(arguments: TokenStream, item: TokenStream) -> Result<TokenStream> {
    let mut errors = Errors::default();
    let arguments = Args::parse(arguments, &mut errors);
    let Some(function) = errors.note(syn::parse2::<Function>(item)) else {
        return errors.or(TokenStream::new());
    };
    let body = function.body(&mut errors);
    let names = names(&arguments, &body, &mut errors);
    errors.note(check_guard(arguments.guard.as_ref(), &body));
    let statements = Expansion::new(&arguments, &body, function.output_span()).statements(&names);
    errors.or(function.with_body(body, statements))
}

fn names(arguments: &Args, body: &Body, errors: &mut Errors) -> Vec<TokenStream> {
    let templates = arguments.templates.iter();
    templates.filter_map(|text| errors.note(template::render(text, &body.scope))).collect()
}

fn check_guard(guard: Option<&Ident>, body: &Body) -> Result<()> {
    let hidden = guard.filter(|guard| body.scope.variable(&guard.to_string()).is_some());
    hidden.map_or(Ok(()), |guard| {
        let problem =
            format!("`guard = {guard}` would hide the parameter `{guard}`; choose another name");
        Err(Error::new(guard.span(), problem))
    })
}

/// What the statements are made from.
struct Expansion<'a> {
    arguments: &'a Args,
    body: &'a Body,
    /// `coordination::__private`
    helpers: TokenStream,
    /// The macro's own context, at the place of the return type.
    output: Span,
}

impl<'a> Expansion<'a> {
    fn new(arguments: &'a Args, body: &'a Body, output: Span) -> Self {
        let helpers = match &arguments.library {
            Some(library) => quote_spanned!(Span::mixed_site()=> #library::__private),
            None => quote_spanned!(Span::mixed_site()=> ::coordination::__private),
        };
        Self { arguments, body, helpers, output: output.resolved_at(Span::mixed_site()) }
    }

    fn statements(&self, names: &[TokenStream]) -> TokenStream {
        let helpers = &self.helpers;
        let wanted = self.wanted(names);
        let timeout = self.timeout();
        let on_lost = self.on_lost();
        let guard = self.guard();
        let body = self.body();
        let outcome = quote_spanned!(self.output=> #helpers::outcome(outcome));
        let (module, wait) = match self.body.kind {
            Kind::Async => (quote!(#helpers), quote_spanned!(Span::mixed_site()=> .await)),
            Kind::Blocking => (quote!(#helpers::blocking), TokenStream::new()),
        };
        quote_spanned! {Span::mixed_site()=>
            let wanted = #wanted;
            let outcome = match #module::acquire(wanted, #timeout, #on_lost) #wait {
                ::core::result::Result::Ok(held) => {
                    #guard
                    let ran = held.run(#body) #wait;
                    held.release(ran) #wait
                }
                ::core::result::Result::Err(error) => ::core::result::Result::Err(error),
            };
            #outcome
        }
    }

    fn wanted(&self, names: &[TokenStream]) -> TokenStream {
        let helpers = &self.helpers;
        let permits = self.permits();
        let wanted = names.iter().map(|name| self.one(name));
        let Some(coordinator) = &self.arguments.coordinator else {
            return quote_spanned! {Span::mixed_site()=> {
                #permits
                match #helpers::global() {
                    ::core::result::Result::Ok(coordinator) => #helpers::in_order([#(#wanted),*]),
                    ::core::result::Result::Err(error) => ::core::result::Result::Err(error),
                }
            }};
        };
        let coordinator = self.as_in_body(coordinator.to_token_stream());
        // The `match` keeps temporaries of the expression for this statement and no longer.
        quote_spanned! {Span::mixed_site()=> {
            #permits
            match &(#coordinator) {
                coordinator => #helpers::in_order([#(#wanted),*]),
            }
        }}
    }

    /// How many permits there are, asked once for all names.
    fn permits(&self) -> Option<TokenStream> {
        let Manner::Permits(permits) = &self.arguments.manner else { return None };
        let permits = self.as_in_body(permits.to_token_stream());
        Some(quote_spanned!(Span::mixed_site()=> let permits: ::core::primitive::u32 = #permits;))
    }

    /// What is taken under this name, in the manner asked for.
    fn one(&self, name: &TokenStream) -> TokenStream {
        let helpers = &self.helpers;
        let named = self.arguments.coordinator.as_ref().map(Spanned::span);
        let span = named.unwrap_or_else(Span::mixed_site).resolved_at(Span::mixed_site());
        match &self.arguments.manner {
            Manner::Exclusive => quote_spanned!(span=> coordinator.lock(#name)),
            Manner::Shared => quote_spanned!(span=> #helpers::shared(coordinator.lock(#name))),
            Manner::Permits(permits) => {
                let permits = quote_spanned!(permits.span().resolved_at(span)=> permits);
                quote_spanned!(span=> coordinator.semaphore(#name, #permits))
            }
        }
    }

    fn timeout(&self) -> TokenStream {
        match &self.arguments.timeout {
            Some(timeout) => {
                let timeout = self.as_in_body(timeout.clone());
                quote_spanned! {Span::mixed_site()=> {
                    let timeout: ::core::time::Duration = #timeout;
                    ::core::option::Option::Some(timeout)
                }}
            }
            None => quote_spanned!(Span::mixed_site()=> ::core::option::Option::None),
        }
    }

    /// An argument's expression with the `self` that is to be had where it is evaluated.
    fn as_in_body(&self, expression: TokenStream) -> TokenStream {
        match self.body.scope.variable("self") {
            Some(variable) if variable != "self" => replace_self(expression, variable),
            _ => expression,
        }
    }

    fn on_lost(&self) -> TokenStream {
        let helpers = &self.helpers;
        match self.arguments.on_lost.unwrap_or(OnLost::Cancel) {
            OnLost::Cancel => quote_spanned!(Span::mixed_site()=> #helpers::OnLost::Cancel),
            OnLost::Finish => quote_spanned!(Span::mixed_site()=> #helpers::OnLost::Finish),
        }
    }

    fn guard(&self) -> Option<TokenStream> {
        let guard = self.arguments.guard.as_ref()?;
        let of = match self.arguments.templates.as_slice() {
            [_] => quote_spanned!(Span::mixed_site()=> held.guard()),
            _ => quote_spanned!(Span::mixed_site()=> held.guards()),
        };
        Some(quote_spanned!(Span::mixed_site()=> let #guard = #of;))
    }

    fn body(&self) -> TokenStream {
        let statements = &self.body.statements;
        let output = self.body.output.as_ref();
        match self.body.kind {
            Kind::Async => {
                let known = output.map(|output| self.returns(output));
                let block = self.block(quote!(#known #statements));
                quote_spanned!(Span::mixed_site()=> async move #block)
            }
            Kind::Blocking => {
                let output = output.map(|output| quote_spanned!(self.output=> -> #output));
                let block = self.block(quote!(#statements));
                quote_spanned!(Span::mixed_site()=> move || #output #block)
            }
        }
    }

    /// Braces at the place of the user's: where a body has no value, rustc shows them.
    fn block(&self, statements: TokenStream) -> Group {
        let mut block = Group::new(Delimiter::Brace, statements);
        block.set_span(self.body.braces.resolved_at(Span::mixed_site()));
        block
    }

    /// Tells the async block that it returns `output`.
    fn returns(&self, output: &syn::Type) -> TokenStream {
        quote_spanned! {self.output=>
            if let ::core::option::Option::Some(never) = ::core::option::Option::None::<#output> {
                return never;
            }
        }
    }
}

/// Like `#[async_trait]` does in the body. `self::` stays: that is a module.
fn replace_self(tokens: TokenStream, variable: &Ident) -> TokenStream {
    let mut tokens = tokens.into_iter().peekable();
    let mut replaced = TokenStream::new();
    while let Some(token) = tokens.next() {
        replaced.extend([match token {
            TokenTree::Ident(ident) if ident == "self" && !is_colon(tokens.peek()) => {
                let mut variable = variable.clone();
                variable.set_span(variable.span().located_at(ident.span()));
                TokenTree::Ident(variable)
            }
            TokenTree::Group(group) => {
                let mut inner =
                    Group::new(group.delimiter(), replace_self(group.stream(), variable));
                inner.set_span(group.span());
                TokenTree::Group(inner)
            }
            other => other,
        }]);
    }
    replaced
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(colon)) if colon.as_char() == ':')
}
