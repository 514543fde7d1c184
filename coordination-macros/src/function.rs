//! The function under the attribute: what is kept, where its body is, and what it must return.
//!
//! The body stays tokens wherever possible, so that a body which is only half typed is for rustc
//! to judge and the attribute does not get in an editor's way. Only the body of a plain `fn` is
//! parsed, to see whether all it does is to make a future:
//!
//! ```text
//! fn f(..) -> Pin<Box<dyn Future<Output = R>>> { Box::pin(async move { .. }) }
//! ```
//!
//! This is what `#[async_trait]`, which expands first, leaves of an `async fn`. Its async block has
//! a known shape, `let <parameter> = ..; let __ret: R = { <body> }; __ret`; the lock is taken
//! between the two, where destructured parameters are bound. Elsewhere `parameters` writes such a beginning.
//!
//! An `async fn` becomes a plain one that returns its future, as rustc would make of it: were it to stay, its own future
//! would have all parameters beside the body, which has them too. It stays where another attribute is still to see it.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Block, Error, Expr, FnArg, GenericArgument, Ident, Local, Meta, Pat, PathArguments,
    PathSegment, Result, ReturnType, Signature, Stmt, Token, Type, TypeParamBound, Visibility,
    braced, token,
};

use crate::errors::Errors;
use crate::parameters::Parameters;
use crate::refusals;
use crate::template::Scope;

/// A function with a body that is not looked into.
pub(crate) struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: Signature,
    brace: token::Brace,
    inner_attributes: Vec<Attribute>,
    statements: TokenStream,
}

impl Parse for Function {
    fn parse(input: ParseStream) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        if !starts_function(input) {
            return Err(input.error("`#[synchronized]` goes on a function or a method"));
        }
        let signature = input.parse()?;
        if input.peek(Token![;]) {
            return Err(input.error(
                "`#[synchronized]` needs a function with a body; of a trait's method, it goes on \
                 the implementations",
            ));
        }
        let content;
        let brace = braced!(content in input);
        let inner_attributes = content.call(Attribute::parse_inner)?;
        let statements = content.parse()?;
        Ok(Self { attributes, visibility, signature, brace, inner_attributes, statements })
    }
}

fn starts_function(input: ParseStream) -> bool {
    input.peek(Token![fn])
        || input.peek(Token![async])
        || input.peek(Token![const])
        || input.peek(Token![unsafe])
        || input.peek(Token![extern])
}

/// The code that must hold the lock, and what is known where it stands.
pub(crate) struct Body {
    pub(crate) kind: Kind,
    /// How the body takes what the function was given.
    pub(crate) parameters: Parameters,
    /// What they are called that are there only when the body has taken them.
    pub(crate) late: Scope,
    brace: token::Brace,
    statements: TokenStream,
    /// What it returns, where that is written down.
    pub(crate) output: Option<Type>,
    pub(crate) scope: Scope,
    frame: Frame,
}

impl Body {
    /// The user's statements after `first`, in the user's braces: at their place rustc shows that a body has no value, and by
    /// their edition it chooses when the temporaries of the last expression are dropped.
    pub(crate) fn block(&self, first: &TokenStream) -> TokenStream {
        let mut block = TokenStream::new();
        self.brace.surround(&mut block, |inside| {
            inside.extend(first.clone());
            inside.extend(self.statements.clone());
        });
        block
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Async,
    Blocking,
}

/// Where the new body goes.
enum Frame {
    /// It is the function's body.
    Function,
    /// It is in the place of the async block that ends the function's body.
    Future { before: Vec<Stmt>, last: Box<Expr> },
}

impl Function {
    /// Finds the body; all reasons why the function cannot be synchronized go to `errors`.
    pub(crate) fn body(&self, errors: &mut Errors) -> Body {
        refusals::all(&self.signature, &self.attributes, &self.statements, errors);
        let body = self.future().unwrap_or_else(|| self.plain());
        errors.note(check_output(&self.signature, body.output.as_ref(), &body.frame));
        body
    }

    fn plain(&self) -> Body {
        let kind = if self.signature.asyncness.is_some() { Kind::Async } else { Kind::Blocking };
        let parameters = Parameters::new(&self.signature.inputs);
        let mut late = Scope::default();
        parameters.patterns.iter().for_each(|pattern| bind_pattern(&mut late, pattern));
        Body {
            kind,
            parameters,
            late,
            brace: self.brace,
            statements: self.statements.clone(),
            output: returned(&self.signature.output).map(without_impl),
            scope: self.scope(),
            frame: Frame::Function,
        }
    }

    /// The body inside `Box::pin(async move { .. })`, if the function is of that kind.
    fn future(&self) -> Option<Body> {
        if self.signature.asyncness.is_some() {
            return None;
        }
        // A body that does not parse is not ours to complain about.
        let mut before = Block::parse_within.parse2(self.statements.clone()).ok()?;
        let Some(Stmt::Expr(mut last, None)) = before.pop() else {
            return None;
        };
        let Expr::Async(block) = async_block(&mut last)? else {
            return None;
        };
        let declared = returned(&self.signature.output).and_then(future_output);
        let (mut scope, mut late) = (self.scope(), Scope::default());
        let mut prelude = std::mem::take(&mut block.block.stmts);
        let (statements, output) = match user_block(&mut prelude) {
            Some((user, output)) => {
                rebind(&mut scope, &prelude);
                rebind(&mut late, &prelude);
                (user, Some(output))
            }
            None => (std::mem::take(&mut prelude), declared.map(without_impl)),
        };
        let frame = Frame::Future { before, last: Box::new(last) };
        let parameters = Parameters::made(&prelude);
        let statements = quote!(#(#statements)*);
        let brace = self.brace;
        Some(Body { kind: Kind::Async, parameters, late, brace, statements, output, scope, frame })
    }

    fn scope(&self) -> Scope {
        let mut scope = Scope::new(&self.signature.ident);
        self.signature.generics.const_params().for_each(|constant| scope.bind(&constant.ident));
        for input in &self.signature.inputs {
            match input {
                FnArg::Receiver(receiver) => scope.bind(&Ident::from(receiver.self_token)),
                FnArg::Typed(parameter) => bind_pattern(&mut scope, &parameter.pat),
            }
        }
        scope
    }

    /// Where errors about the return type are shown.
    pub(crate) fn output_span(&self) -> Span {
        match &self.signature.output {
            ReturnType::Default => self.signature.ident.span(),
            ReturnType::Type(_, output) => output.span(),
        }
    }

    /// The function with `run` in place of the body: an expression, of an async body's future.
    pub(crate) fn with_body(mut self, body: Body, run: TokenStream) -> TokenStream {
        let statements = match body.frame {
            Frame::Function => {
                self.signature.inputs = body.parameters.inputs;
                match body.kind {
                    Kind::Async if self.may_return_future() => {
                        self.return_future();
                        run
                    }
                    Kind::Async => quote_spanned!(Span::mixed_site()=> #run.await),
                    Kind::Blocking => run,
                }
            }
            Frame::Future { before, mut last } => {
                if let Some(block) = async_block(&mut last) {
                    *block = Expr::Verbatim(run);
                }
                quote!(#(#before)* #last)
            }
        };
        let Self { attributes, visibility, signature, brace, inner_attributes, .. } = self;
        let mut function = quote!(#(#attributes)* #visibility #signature);
        brace.surround(&mut function, |body| {
            body.extend(quote!(#(#inner_attributes)* #statements));
        });
        function
    }

    /// Whether no other attribute is still to see an `async fn`.
    fn may_return_future(&self) -> bool {
        self.attributes.iter().all(|attribute| is_inert(&attribute.meta))
    }

    /// `async fn f() -> R` as `fn f() -> impl Future<Output = R>`. By its edition, which is the macro's, the type captures all
    /// lifetimes, as that of an `async fn` does.
    fn return_future(&mut self) {
        self.signature.asyncness = None;
        if let ReturnType::Type(_, output) = &mut self.signature.output {
            let future = quote_spanned! {Span::mixed_site()=>
                impl ::core::future::Future<Output = #output>
            };
            **output = Type::Verbatim(future);
        }
    }
}

/// Whether it is the compiler's own, and says nothing of an `async fn`. What the function returns must be used as it is.
fn is_inert(attribute: &Meta) -> bool {
    const INERT: [&str; 12] = [
        "allow",
        "cfg",
        "clippy",
        "cold",
        "deny",
        "deprecated",
        "doc",
        "expect",
        "inline",
        "must_use",
        "rustfmt",
        "warn",
    ];
    match attribute {
        Meta::List(list) if list.path.is_ident("cfg_attr") => {
            let metas = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            metas.is_ok_and(|metas| metas.iter().skip(1).all(is_inert))
        }
        _ => {
            let first = attribute.path().segments.first();
            first.is_some_and(|first| INERT.iter().any(|inert| first.ident == inert))
        }
    }
}

/// The async block that `expression` is, or that it passes to `Box::pin`.
fn async_block(expression: &mut Expr) -> Option<&mut Expr> {
    match expression {
        Expr::Async(_) => Some(expression),
        Expr::Call(call) => {
            let Expr::Path(function) = &*call.func else {
                return None;
            };
            let mut segments = function.path.segments.iter().rev();
            let named =
                |segment: Option<&PathSegment>, name| segment.is_some_and(|s| s.ident == name);
            if !(named(segments.next(), "pin") && named(segments.next(), "Box")) {
                return None;
            }
            call.args.first_mut().filter(|argument| matches!(argument, Expr::Async(_)))
        }
        _ => None,
    }
}

/// Takes `let __ret: R = { .. }; __ret` off the end: what `#[async_trait]` makes of a body.
fn user_block(statements: &mut Vec<Stmt>) -> Option<(Vec<Stmt>, Type)> {
    let [.., Stmt::Local(local), Stmt::Expr(Expr::Path(_), None)] = statements.as_mut_slice()
    else {
        return None;
    };
    let (block, output) = returned_block(local)?;
    let user = (std::mem::take(&mut block.stmts), output);
    statements.truncate(statements.len() - 2);
    Some(user)
}

fn returned_block(local: &mut Local) -> Option<(&mut Block, Type)> {
    let Pat::Type(typed) = &local.pat else {
        return None;
    };
    let Pat::Ident(name) = &*typed.pat else {
        return None;
    };
    let Expr::Block(block) = &mut *local.init.as_mut()?.expr else {
        return None;
    };
    (name.ident == "__ret").then(|| (&mut block.block, typed.ty.as_ref().clone()))
}

/// Adds what the statements before the body bind; `__self` is what they make of `self`.
fn rebind(scope: &mut Scope, prelude: &[Stmt]) {
    for statement in prelude {
        let Stmt::Local(local) = statement else {
            continue;
        };
        match &local.pat {
            Pat::Ident(variable) if variable.ident == "__self" => {
                scope.alias("self", &variable.ident)
            }
            pattern => bind_pattern(scope, pattern),
        }
    }
}

fn bind_pattern(scope: &mut Scope, pattern: &Pat) {
    match pattern {
        Pat::Ident(variable) => {
            scope.bind(&variable.ident);
            if let Some((_, inner)) = &variable.subpat {
                bind_pattern(scope, inner);
            }
        }
        Pat::Or(or) => or.cases.iter().for_each(|case| bind_pattern(scope, case)),
        Pat::Paren(paren) => bind_pattern(scope, &paren.pat),
        Pat::Reference(reference) => bind_pattern(scope, &reference.pat),
        Pat::Slice(slice) => slice.elems.iter().for_each(|item| bind_pattern(scope, item)),
        Pat::Struct(fields) => {
            fields.fields.iter().for_each(|field| bind_pattern(scope, &field.pat))
        }
        Pat::Tuple(tuple) => tuple.elems.iter().for_each(|item| bind_pattern(scope, item)),
        Pat::TupleStruct(tuple) => tuple.elems.iter().for_each(|item| bind_pattern(scope, item)),
        Pat::Type(typed) => bind_pattern(scope, &typed.pat),
        _ => {}
    }
}

fn returned(output: &ReturnType) -> Option<&Type> {
    match output {
        ReturnType::Default => None,
        ReturnType::Type(_, output) => Some(output),
    }
}

/// Refuses what cannot be a `Result`, under whatever name; the rest is for rustc to find out.
fn check_output(signature: &Signature, output: Option<&Type>, frame: &Frame) -> Result<()> {
    let Some(declared) = returned(&signature.output) else {
        let problem = format!("this function returns nothing; {RESULT}");
        return Err(Error::new(signature.ident.span(), problem));
    };
    if matches!(frame, Frame::Function) && future_output(declared).is_some() {
        let problem = "a plain `fn` that returns a future must end in `Box::pin(async move { .. })` \
                       or `async move { .. }`, so that the lock can be taken inside";
        return Err(Error::new_spanned(declared, problem));
    }
    match output.filter(|output| is_no_result(output)) {
        Some(output) => {
            Err(Error::new_spanned(output, format!("this is not a `Result`; {RESULT}")))
        }
        None => Ok(()),
    }
}

const RESULT: &str = "a synchronized function returns `Result<T, E>` where `E: From<coordination::Error>`, or with \
                      `map_err = ..`, because taking the lock can fail";

fn is_no_result(output: &Type) -> bool {
    match output {
        Type::Group(group) => is_no_result(&group.elem),
        Type::Paren(paren) => is_no_result(&paren.elem),
        Type::Path(path) => path.path.segments.last().is_some_and(is_known_type),
        Type::Macro(_) | Type::Infer(_) | Type::Verbatim(_) => false,
        _ => true,
    }
}

fn is_known_type(last: &PathSegment) -> bool {
    const KNOWN: [&str; 20] = [
        "bool", "char", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "str", "u8",
        "u16", "u32", "u64", "u128", "usize", "String", "Option", "Vec",
    ];
    KNOWN.iter().any(|known| last.ident == known)
}

/// The `R` of `Pin<Box<dyn Future<Output = R>>>`, `BoxFuture<R>` and `impl Future<Output = R>`.
fn future_output(future: &Type) -> Option<&Type> {
    match future {
        Type::ImplTrait(future) => future.bounds.iter().find_map(bound_output),
        Type::TraitObject(future) => future.bounds.iter().find_map(bound_output),
        Type::Paren(paren) => future_output(&paren.elem),
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            let argument = type_arguments(last).last()?;
            match last.ident.to_string().as_str() {
                "BoxFuture" | "LocalBoxFuture" => Some(argument),
                "Pin" | "Box" => future_output(argument),
                _ => None,
            }
        }
        _ => None,
    }
}

fn bound_output(bound: &TypeParamBound) -> Option<&Type> {
    let TypeParamBound::Trait(bound) = bound else {
        return None;
    };
    let last = bound.path.segments.last().filter(|last| last.ident == "Future")?;
    arguments(last).find_map(|argument| match argument {
        GenericArgument::AssocType(output) if output.ident == "Output" => Some(&output.ty),
        _ => None,
    })
}

fn arguments(segment: &PathSegment) -> impl Iterator<Item = &GenericArgument> {
    let arguments = match &segment.arguments {
        PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
        _ => None,
    };
    arguments.into_iter().flatten()
}

fn type_arguments(segment: &PathSegment) -> impl Iterator<Item = &Type> {
    arguments(segment).filter_map(|argument| match argument {
        GenericArgument::Type(argument) => Some(argument),
        _ => None,
    })
}

/// The type with `_` for every `impl Trait`, which cannot be written inside a function.
fn without_impl(output: &Type) -> Type {
    let mut output = output.clone();
    infer_impl(&mut output);
    output
}

fn infer_impl(output: &mut Type) {
    match output {
        Type::ImplTrait(_) => *output = Type::Verbatim(quote_spanned!(output.span()=> _)),
        Type::Group(group) => infer_impl(&mut group.elem),
        Type::Paren(paren) => infer_impl(&mut paren.elem),
        Type::Array(array) => infer_impl(&mut array.elem),
        Type::Slice(slice) => infer_impl(&mut slice.elem),
        Type::Ptr(pointer) => infer_impl(&mut pointer.elem),
        Type::Reference(reference) => infer_impl(&mut reference.elem),
        Type::Tuple(tuple) => tuple.elems.iter_mut().for_each(infer_impl),
        Type::Path(path) => path.path.segments.iter_mut().for_each(infer_impl_arguments),
        _ => {}
    }
}

fn infer_impl_arguments(segment: &mut PathSegment) {
    let PathArguments::AngleBracketed(arguments) = &mut segment.arguments else {
        return;
    };
    for argument in &mut arguments.args {
        if let GenericArgument::Type(argument) = argument {
            infer_impl(argument);
        }
    }
}
