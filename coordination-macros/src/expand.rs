//! The code that the attribute leaves behind.
//!
//! ```text
//! async fn resize(id: Uuid) -> Result<(), StorageError> { <body> }
//!
//! fn resize(id: Uuid) -> impl Future<Output = Result<(), StorageError>> {
//!     let outcomes = __private::outcome();
//!     let held = __private::Held::new(OnLost::Cancel);
//!     __private::run(held.clone(), outcomes, async move {
//!         let wanted = match __private::global() {
//!             Ok(coordinator) => __private::in_order([Some("vol-<id>")], [coordinator.lock(format!("vol-{0}", id))]),
//!             Err(error) => Err(error),
//!         };
//!         let guards = match held.acquire(wanted, timeout).await {
//!             Ok(guards) => guards,
//!             Err(error) => return outcomes.failed(error),
//!         };
//!         let id = id;
//!         { let guard = __private::only(guards); <body> }         // with `guard = guard`
//!     })
//! }
//! ```
//!
//! With `shared` it is `__private::shared(coordinator.lock(..))`, with `shared("some")` `share` or `whole`, and with `permits = n` it is
//! `coordinator.semaphore(.., n)`; the rest stays as it is.
//!
//! What happens at run time is in the library's module `__private`, so that the code in the user's
//! function stays this small. A plain `fn` gets the same from `__private::blocking`, without the
//! `await`s and with a closure for the body.
//!
//! # Why it looks this way
//!
//! * The body is a block of its own, so `return` and `?` leave the body and the release still runs.
//! * The body owns all parameters, and acquires its lock itself. If the lock were acquired outside of the body, where the
//!   names are made from the parameters, a second copy of the parameters would be kept all the time.
//! * The user's braces stay the user's, as the edition of a block decides when its last temporaries are dropped.
//! * Every token has the context `mixed_site`: `held` never meets a `held` of the user, and lints
//!   that are about written code keep away. The tokens of the user keep their spans.
//! * `E: From<Error>` is required in one place, `outcome`, with the span of the return type, so
//!   that an error type without it gives one error, at that place.
//! * An async block does not know which type it has to return. As in `tracing` and `async-trait`, a
//!   `return` that never runs, at the beginning, states the type, so that coercions in the body work.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Error, Ident, Result};

use crate::args::{Args, Manner, OnLost, Text};
use crate::errors::Errors;
use crate::function::{Body, Function, Kind};
use crate::refusals::contains;
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
    let run = Expansion::new(&arguments, &body, function.output_span()).run(&names);
    errors.or(function.with_body(body, run))
}

fn names(arguments: &Args, body: &Body, errors: &mut Errors) -> Vec<TokenStream> {
    let names = arguments.names.iter().map(|name| match &name.text {
        Text::Template(template) => template::render(template, &body.scope),
        // Borrowed, as what a template names: the body owns its parameters.
        Text::Expression(name) => {
            let expression = as_in_body(body, name.to_token_stream());
            Ok(quote_spanned!(name.span().resolved_at(Span::mixed_site())=> &(#expression)))
        }
    });
    names.filter_map(|name| errors.note(name)).collect()
}

fn check_guard(guard: Option<&Ident>, body: &Body) -> Result<()> {
    let is_parameter = |name: &Ident| body.scope.variable(&name.unraw().to_string()).is_some();
    let hidden = guard.filter(|guard| is_parameter(guard));
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
        let helpers = helpers(arguments, Span::mixed_site());
        Self { arguments, body, helpers, output: output.resolved_at(Span::mixed_site()) }
    }

    /// The expression that runs the body under its locks.
    fn run(&self, names: &[TokenStream]) -> TokenStream {
        let (helpers, on_lost) = (&self.helpers, self.on_lost());
        let outcomes = self.outcomes();
        let body = self.body(names);
        let module = match self.body.kind {
            Kind::Async => quote!(#helpers),
            Kind::Blocking => quote!(#helpers::blocking),
        };
        quote_spanned! {Span::mixed_site()=> {
            let outcomes = #outcomes;
            let held = #helpers::Held::new(#on_lost);
            #module::run(::core::clone::Clone::clone(&held), outcomes, #body)
        }}
    }

    /// How our errors become the function's; at the place of the return type, where rustc says that one does not fit.
    fn outcomes(&self) -> TokenStream {
        let helpers = helpers(self.arguments, self.output);
        match &self.arguments.map_err {
            Some(map) => quote_spanned! {map.span().resolved_at(Span::mixed_site())=>
                #helpers::mapped(|error| {
                    ::core::result::Result::map_err(::core::result::Result::Err(error), #map)
                })
            },
            None => quote_spanned!(self.output=> #helpers::outcome()),
        }
    }

    fn body(&self, names: &[TokenStream]) -> TokenStream {
        let begin = self.begin(names);
        // With a statement of ours before them, lone expressions are in no braces that rustc finds too many.
        let block = self.body.block(&self.guard());
        let output = self.body.output.as_ref();
        match self.body.kind {
            Kind::Async => {
                let known = output.map(|output| self.returns(output));
                quote_spanned!(Span::mixed_site()=> async move { #known #begin #block })
            }
            Kind::Blocking => {
                let output = output.map(|output| quote_spanned!(self.output=> -> #output));
                quote_spanned!(Span::mixed_site()=> move || #output { #begin #block })
            }
        }
    }

    /// Takes the locks and what the function was given.
    fn begin(&self, names: &[TokenStream]) -> TokenStream {
        let helpers = &self.helpers;
        let (wanted, timeout) = (self.wanted(names), self.timeout());
        let parameters = &self.body.parameters;
        let asked = quote!(#wanted #timeout);
        let taken = parameters.taken(|parameter| contains(&asked, &|ident| ident == parameter));
        let given_up = &parameters.given_up;
        let (before, after, given_up) = match contains(&asked, &|ident| self.body.late.has(ident)) {
            true => (Some(taken), None, None),
            false => (None, Some(taken), Some(given_up)),
        };
        let acquired = match self.body.kind {
            Kind::Async => {
                quote_spanned!(Span::mixed_site()=> held.acquire(wanted, #timeout).await)
            }
            Kind::Blocking => quote_spanned! {Span::mixed_site()=>
                #helpers::blocking::acquire(&held, wanted, #timeout)
            },
        };
        quote_spanned! {Span::mixed_site()=>
            #before
            let wanted = #wanted;
            let guards = match #acquired {
                ::core::result::Result::Ok(guards) => guards,
                ::core::result::Result::Err(error) => {
                    #given_up
                    return outcomes.failed(error);
                }
            };
            #after
        }
    }

    fn wanted(&self, names: &[TokenStream]) -> TokenStream {
        let helpers = &self.helpers;
        let permits = self.permits();
        let templates = self.templates();
        let wanted = names.iter().zip(&self.arguments.names);
        let wanted = wanted.map(|(name, asked)| self.one(name, asked.is_shared));
        let Some(coordinator) = &self.arguments.coordinator else {
            return quote_spanned! {Span::mixed_site()=> {
                #permits
                match #helpers::global() {
                    ::core::result::Result::Ok(coordinator) => #helpers::in_order(#templates, [#(#wanted),*]),
                    ::core::result::Result::Err(error) => ::core::result::Result::Err(error),
                }
            }};
        };
        let coordinator = as_in_body(self.body, coordinator.to_token_stream());
        // The `match` keeps temporaries of the expression for this statement and no longer.
        quote_spanned! {Span::mixed_site()=> {
            #permits
            match &(#coordinator) {
                coordinator => #helpers::in_order(#templates, [#(#wanted),*]),
            }
        }}
    }

    /// The template of each name, `None` where there is none.
    fn templates(&self) -> TokenStream {
        let templates = self.arguments.names.iter().map(|name| match &name.text {
            Text::Template(template) => {
                let template = template.value();
                quote_spanned!(Span::mixed_site()=> ::core::option::Option::Some(#template))
            }
            Text::Expression(_) => {
                quote_spanned!(Span::mixed_site()=> ::core::option::Option::None)
            }
        });
        quote_spanned!(Span::mixed_site()=> [#(#templates),*])
    }

    /// How many permits there are, asked once for all names.
    fn permits(&self) -> Option<TokenStream> {
        let Manner::Permits(permits) = &self.arguments.manner else { return None };
        let permits = as_in_body(self.body, permits.to_token_stream());
        Some(quote_spanned!(Span::mixed_site()=> let permits: ::core::primitive::u32 = #permits;))
    }

    /// What is taken under this name, in the manner asked for.
    fn one(&self, name: &TokenStream, is_shared: bool) -> TokenStream {
        let helpers = &self.helpers;
        let named = self.arguments.coordinator.as_ref().map(Spanned::span);
        let span = named.unwrap_or_else(Span::mixed_site).resolved_at(Span::mixed_site());
        let lock = quote_spanned!(span=> coordinator.lock(#name));
        match &self.arguments.manner {
            Manner::Exclusive if self.arguments.names.iter().any(|name| name.is_shared) => {
                match is_shared {
                    true => quote_spanned!(span=> #helpers::share(#lock)),
                    false => quote_spanned!(span=> #helpers::whole(#lock)),
                }
            }
            Manner::Exclusive => lock,
            Manner::Shared => quote_spanned!(span=> #helpers::shared(#lock)),
            Manner::Permits(permits) => {
                let permits = quote_spanned!(permits.span().resolved_at(span)=> permits);
                quote_spanned!(span=> coordinator.semaphore(#name, #permits))
            }
        }
    }

    fn timeout(&self) -> TokenStream {
        match &self.arguments.timeout {
            Some(timeout) => {
                let timeout = as_in_body(self.body, timeout.clone());
                quote_spanned! {Span::mixed_site()=> {
                    let timeout: ::core::time::Duration = #timeout;
                    ::core::option::Option::Some(timeout)
                }}
            }
            None => quote_spanned!(Span::mixed_site()=> ::core::option::Option::None),
        }
    }

    fn on_lost(&self) -> TokenStream {
        let helpers = &self.helpers;
        match self.arguments.on_lost.unwrap_or(OnLost::Cancel) {
            OnLost::Cancel => quote_spanned!(Span::mixed_site()=> #helpers::OnLost::Cancel),
            OnLost::Finish => quote_spanned!(Span::mixed_site()=> #helpers::OnLost::Finish),
        }
    }

    fn guard(&self) -> TokenStream {
        let helpers = &self.helpers;
        let guards = match self.arguments.names.as_slice() {
            [_] => quote_spanned!(Span::mixed_site()=> #helpers::only(guards)),
            _ => quote_spanned!(Span::mixed_site()=> guards),
        };
        match &self.arguments.guard {
            Some(guard) => quote_spanned!(Span::mixed_site()=> let #guard = #guards;),
            None => quote_spanned!(Span::mixed_site()=> let _ = guards;),
        }
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

/// `coordination::__private`, written there.
fn helpers(arguments: &Args, place: Span) -> TokenStream {
    match &arguments.library {
        Some(library) => quote_spanned!(place=> #library::__private),
        None => quote_spanned!(place=> ::coordination::__private),
    }
}

/// An argument's expression with the `self` that is to be had where it is evaluated.
fn as_in_body(body: &Body, expression: TokenStream) -> TokenStream {
    match body.scope.variable("self") {
        Some(variable) if variable != "self" => replace_self(expression, variable),
        _ => expression,
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
