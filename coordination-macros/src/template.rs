//! Name templates: from `"vol-<id>"` to `format!("vol-{0}", id)`.
//!
//! # Grammar
//!
//! ```text
//! template    = { text | placeholder }      text: `<<` `>>` `{{` `}}` are the literal characters
//! placeholder = "<" path [ ":" spec ] ">"  |  "{" path [ ":" spec ] "}"
//! path        = ( name | constant ) { "." field | "." index | "." method "()" | "[" key "]" }
//! ```
//!
//! A constant is a name in capitals, or one with its path, as `LIMIT`, `Self::KIND` or `limits::LARGEST`.
//!
//! The same as in the templates that the library reads at run time, with method calls and format
//! specs besides. The path becomes an expression; what it means, and whether the result can be
//! displayed, is left to rustc, whose messages then point at the literal.
//!
//! # Spans
//!
//! Parts of a literal have no span of their own on stable Rust, so every token gets the span of the
//! literal and messages quote the placeholder. The first name of a path is resolved where the
//! parameter is declared, not where the literal stands: the two differ when a `macro_rules` macro
//! makes the function and its caller passes the literal.

use proc_macro2::{Literal, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::Parser;
use syn::{Error, Ident, LitStr};

use crate::errors::Errors;
use crate::nearest;

/// What a path may start with.
#[derive(Default)]
pub(crate) struct Scope {
    /// The name of the function, for `f_name`.
    function: String,
    /// What a template calls it, and the variable that it is.
    names: Vec<(String, Ident)>,
}

impl Scope {
    pub(crate) fn new(function: &Ident) -> Self {
        Self { function: unraw(function), names: Vec::new() }
    }

    /// Adds a variable; one of the same name is hidden by it.
    pub(crate) fn bind(&mut self, variable: &Ident) {
        self.alias(&unraw(variable), variable);
    }

    /// Adds a variable that templates call `name`.
    pub(crate) fn alias(&mut self, name: &str, variable: &Ident) {
        match self.names.iter_mut().find(|(known, _)| known == name) {
            Some(known) => known.1 = variable.clone(),
            None => self.names.push((name.to_owned(), variable.clone())),
        }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&Ident> {
        self.names.iter().find(|(known, _)| known == name).map(|(_, variable)| variable)
    }

    /// Whether this is one of the variables, by whatever name templates call it.
    pub(crate) fn has(&self, ident: &Ident) -> bool {
        self.names.iter().any(|(_, variable)| variable == ident)
    }

    /// What to say of a name that is none of the variables.
    fn unknown(&self, name: &str) -> String {
        let names = self.names.iter().map(|(name, _)| name.as_str()).chain(["f_name"]);
        let hint = nearest::hint(name.trim_start_matches("r#"), names);
        format!("there is no parameter `{name}`{hint}; {}", self.known())
    }

    fn known(&self) -> String {
        let names: Vec<String> = self.names.iter().map(|(name, _)| format!("`{name}`")).collect();
        match names.as_slice() {
            [] => format!("the function has no parameters; `f_name` is its name; {OTHER}"),
            _ => format!(
                "the parameters are {}; `f_name` is the function's name; {OTHER}",
                names.join(", ")
            ),
        }
    }
}

fn unraw(ident: &Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map_or_else(|| text.clone(), str::to_owned)
}

/// The expression of type `String` that renders `template`.
pub(crate) fn render(template: &LitStr, scope: &Scope) -> syn::Result<TokenStream> {
    let mut rendering = Rendering::new(template, scope);
    if let Err(error) = rendering.read(&template.value()) {
        rendering.errors.push(error);
    }
    rendering.expression()
}

/// A `format!` in the making.
struct Rendering<'a> {
    template: &'a LitStr,
    scope: &'a Scope,
    format: String,
    arguments: Vec<TokenStream>,
    errors: Errors,
}

impl<'a> Rendering<'a> {
    fn new(template: &'a LitStr, scope: &'a Scope) -> Self {
        let (format, arguments) = (String::new(), Vec::new());
        Self { template, scope, format, arguments, errors: Errors::default() }
    }

    fn expression(self) -> syn::Result<TokenStream> {
        let (format, arguments) = (self.format, self.arguments);
        if format.is_empty() && self.errors.is_empty() {
            let problem = "the name is empty; it needs at least one byte";
            return Err(Error::new(self.template.span(), problem));
        }
        // The user's place and the macro's context: messages point there, lints keep away.
        let span = self.template.span().resolved_at(Span::mixed_site());
        let format = LitStr::new(&format, span);
        self.errors.or(quote_spanned!(span=> ::std::format!(#format #(, #arguments)*)))
    }

    /// Takes text and placeholders in turn; a fault in a placeholder does not end it.
    fn read(&mut self, mut rest: &str) -> syn::Result<()> {
        while let Some(at) = rest.find(['<', '>', '{', '}']) {
            let (text, marked) = rest.split_at(at);
            self.format.push_str(text);
            rest = match escaped(marked) {
                Some((mark, after)) => {
                    self.text(mark);
                    after
                }
                None => self.placeholder(marked)?,
            };
        }
        self.format.push_str(rest);
        Ok(())
    }

    /// Adds text in which braces have no meaning.
    fn text(&mut self, text: &str) {
        self.format.push_str(&text.replace('{', "{{").replace('}', "}}"));
    }

    /// Takes the placeholder at the start of `marked`, and answers what follows it.
    fn placeholder<'t>(&mut self, marked: &'t str) -> syn::Result<&'t str> {
        let close = match marked.as_bytes() {
            [b'<', ..] => '>',
            [b'{', ..] => '}',
            _ => return Err(self.unopened(marked)),
        };
        let inside = &marked[1..];
        let Some(end) = end_of_placeholder(inside, close) else {
            let problem = format!("`{marked}` is not closed; {}", ways_to_write(marked));
            return Err(Error::new(self.template.span(), problem));
        };
        let (text, after) = inside.split_at(end);
        if let Err(problem) = self.fill_in(text) {
            let problem = format!("placeholder `{}`: {problem}", &marked[..end + 2]);
            self.errors.push(Error::new(self.template.span(), problem));
        }
        Ok(&after[1..])
    }

    fn unopened(&self, marked: &str) -> Error {
        let mark = &marked[..1];
        let spec = match mark {
            ">" => "; a format spec that has `>` in it goes in braces, as in `{id:>8}`",
            _ => "",
        };
        let problem = format!("`{mark}` closes nothing; {}{spec}", ways_to_write(mark));
        Error::new(self.template.span(), problem)
    }

    fn fill_in(&mut self, text: &str) -> Result<(), String> {
        let (path, spec) = text.split_at(start_of_spec(text).unwrap_or(text.len()));
        let path = path.trim();
        if path == "f_name" && spec.is_empty() && self.scope.variable(path).is_none() {
            let name = &self.scope.function;
            self.format.push_str(name);
            return Ok(());
        }
        let expression = Path { rest: path, template: self.template }.expression(self.scope)?;
        let argument = self.argument(expression);
        let spec = self.spec(spec.strip_prefix(':').unwrap_or(spec).trim_end())?;
        self.format.push_str(&format!("{{{argument}{spec}}}"));
        Ok(())
    }

    /// Adds an argument of `format!`; the answer is its number.
    fn argument(&mut self, expression: TokenStream) -> usize {
        self.arguments.push(expression);
        self.arguments.len() - 1
    }

    /// A format spec with its colon, in which `width$` is the number of an argument.
    fn spec(&mut self, spec: &str) -> Result<String, String> {
        if spec.contains(['{', '}', '*']) {
            return Err(format!(
                "`{spec}` cannot be used as a format spec here; width and precision are numbers or \
                 parameters, as in `{{id:>8}}` or `{{id:>width$}}`"
            ));
        }
        let mut numbered = String::from(if spec.is_empty() { "" } else { ":" });
        let mut pieces = spec.split('$').peekable();
        while let Some(piece) = pieces.next() {
            let name = trailing_name(piece);
            if pieces.peek().is_none() {
                numbered.push_str(piece);
            } else if piece.ends_with(|c: char| c.is_ascii_digit()) && name.is_empty() {
                return Err(
                    "an argument has no number here; give its name before the `$`".to_owned()
                );
            } else if name.is_empty() {
                numbered.push_str(piece);
                numbered.push('$');
            } else {
                let number = self.parameter(name)?;
                numbered.push_str(&piece[..piece.len() - name.len()]);
                numbered.push_str(&format!("{number}$"));
            }
        }
        Ok(numbered)
    }

    fn parameter(&mut self, name: &str) -> Result<usize, String> {
        let path = Path { rest: name, template: self.template };
        Ok(self.argument(path.expression(self.scope)?))
    }
}

fn escaped(marked: &str) -> Option<(&str, &str)> {
    let (mark, after) = marked.split_at(1);
    after.strip_prefix(mark).map(|after| (mark, after))
}

fn ways_to_write(marked: &str) -> String {
    let mark = &marked[..1];
    format!("write `{mark}{mark}` for the character itself")
}

fn end_of_placeholder(text: &str, close: char) -> Option<usize> {
    end_outside_keys(text, close)
}

/// The first `wanted` that is not part of a `[key]`.
fn end_outside_keys(text: &str, wanted: char) -> Option<usize> {
    let mut in_key = false;
    for (at, c) in text.char_indices() {
        match c {
            ']' => in_key = false,
            _ if in_key => {}
            _ if c == wanted => return Some(at),
            '[' => in_key = true,
            _ => {}
        }
    }
    None
}

/// The first `:` that is no part of a `[key]` or of a `::` between names. A spec may begin with another colon, which is the
/// character to fill with: no name follows that.
fn start_of_spec(text: &str) -> Option<usize> {
    let at = end_outside_keys(text, ':')?;
    let path = text[at..].strip_prefix("::").filter(|after| after.starts_with(is_name));
    match path {
        Some(after) => Some(text.len() - after.len() + start_of_spec(after)?),
        None => Some(at),
    }
}

/// The `width` in `>width`, for a `$` after it.
fn trailing_name(text: &str) -> &str {
    let start = text.trim_end_matches(is_name).len();
    text[start..].trim_start_matches(|c: char| c.is_ascii_digit())
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// A path of which `rest` is still to be read.
struct Path<'a> {
    rest: &'a str,
    template: &'a LitStr,
}

impl<'a> Path<'a> {
    fn expression(mut self, scope: &Scope) -> Result<TokenStream, String> {
        let mut expression = self.start(scope)?;
        while let Some(step) = self.rest.chars().next() {
            self.rest = &self.rest[step.len_utf8()..];
            let step = match step {
                '.' => self.member()?,
                '[' => self.key()?,
                other => return Err(format!("unexpected `{other}`; {PATH}")),
            };
            expression.extend(step);
        }
        Ok(expression)
    }

    fn start(&mut self, scope: &Scope) -> Result<TokenStream, String> {
        let name = self.name();
        if name.is_empty() {
            return Err(format!("it starts with no name; {PATH}"));
        }
        if let Some(variable) = scope.variable(name.trim_start_matches("r#")) {
            let mut variable = variable.clone();
            variable.set_span(variable.span().located_at(self.template.span()));
            return Ok(quote!(#variable));
        }
        if name == "f_name" {
            let name = LitStr::new(&scope.function, self.template.span());
            return Ok(quote!(#name));
        }
        self.constant(name).unwrap_or_else(|| Err(scope.unknown(name)))
    }

    /// What looks like a constant, of which rustc knows whether it is in scope; `None` for any other name.
    fn constant(&mut self, first: &str) -> Option<Result<TokenStream, String>> {
        let mut path = first.to_owned();
        while let Some(rest) = self.rest.strip_prefix("::") {
            self.rest = rest;
            path = format!("{path}::{}", self.name());
        }
        let is_capital = |c: char| c.is_uppercase() || c.is_ascii_digit() || c == '_';
        let is_constant = path.chars().all(is_capital) && path.starts_with(char::is_uppercase);
        if !is_constant && !path.contains("::") {
            return None;
        }
        let parsed = LitStr::new(&path, self.template.span()).parse::<syn::Path>();
        Some(
            parsed.map(|path| quote!(#path)).map_err(|_| format!("`{path}` is not a path; {PATH}")),
        )
    }

    fn member(&mut self) -> Result<TokenStream, String> {
        let span = self.template.span();
        let name = self.name();
        if all_digits(name) {
            let index = number(name, span)?;
            return Ok(quote_spanned!(span=> .#index));
        }
        let mut member: Ident = syn::parse_str(name).map_err(|_| not_a_member(name))?;
        member.set_span(span);
        let Some(arguments) = self.rest.strip_prefix('(') else {
            return Ok(quote_spanned!(span=> .#member));
        };
        self.rest = arguments.strip_prefix(')').ok_or_else(|| {
            format!("`{member}` is called with arguments; only `{member}()` is possible; {OTHER}")
        })?;
        Ok(quote_spanned!(span=> .#member()))
    }

    fn key(&mut self) -> Result<TokenStream, String> {
        let span = self.template.span();
        let (key, after) = self.rest.split_once(']').ok_or("`[` is not closed")?;
        self.rest = after;
        if key.is_empty() || key.contains(['"', '[']) {
            return Err(format!(
                "`[{key}]` is not a key; write an integer or bare text, without quotes"
            ));
        }
        if all_digits(key) {
            let index = number(key, span)?;
            return Ok(quote_spanned!(span=> [#index]));
        }
        let key = LitStr::new(key, span);
        Ok(quote_spanned!(span=> [#key]))
    }

    fn name(&mut self) -> &'a str {
        let raw = if self.rest.starts_with("r#") { 2 } else { 0 };
        let end = self.rest[raw..].find(|c| !is_name(c)).map_or(self.rest.len(), |end| end + raw);
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        name
    }
}

const PATH: &str = "a path is a parameter, a constant or `f_name`, followed by `.field`, `.0`, `.method()` or `[key]`; \
                    for any other expression write `name = format!(..)`";

const OTHER: &str = "for any other expression write `name = format!(..)`";

fn not_a_member(name: &str) -> String {
    match name {
        "" => format!("nothing follows a `.`; {PATH}"),
        _ => format!("`{name}` is not the name of a field or method{}", as_raw(name)),
    }
}

/// How a keyword is written that is a name.
fn as_raw(name: &str) -> String {
    // rustc has no raw form of these.
    let is_never_raw = ["self", "Self", "super", "crate", "_"].contains(&name);
    match Ident::parse_any.parse_str(name) {
        Ok(_) if !is_never_raw => {
            format!(
                ", as it is a keyword; write `r#{name}` for a field or method that is called so"
            )
        }
        _ => String::new(),
    }
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn number(digits: &str, span: Span) -> Result<Literal, String> {
    let number: usize = digits.parse().map_err(|_| format!("`{digits}` is too large an index"))?;
    let mut literal = Literal::usize_unsuffixed(number);
    literal.set_span(span);
    Ok(literal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> Scope {
        let ident = |name| Ident::new(name, Span::call_site());
        let mut scope = Scope::new(&ident("resize"));
        for name in ["self", "id", "snap", "width"] {
            scope.bind(&ident(name));
        }
        scope.bind(&Ident::new_raw("type", Span::call_site()));
        scope
    }

    fn rendered(template: &str) -> Result<String, String> {
        let literal = LitStr::new(template, Span::call_site());
        match render(&literal, &scope()) {
            Ok(expression) => Ok(expression.to_string().replace(' ', "")),
            Err(errors) => {
                let problems: Vec<String> = errors.into_iter().map(|e| e.to_string()).collect();
                Err(problems.join("\n"))
            }
        }
    }

    #[test]
    fn paths_become_expressions() {
        for (template, expected) in [
            ("vol", r#"::std::format!("vol")"#),
            ("vol-<id>", r#"::std::format!("vol-{0}",id)"#),
            ("{ id }", r#"::std::format!("{0}",id)"#),
            ("<self.0.1>", r#"::std::format!("{0}",self.0.1)"#),
            ("<self.share.id()>", r#"::std::format!("{0}",self.share.id())"#),
            ("<id.r#fn>", r##"::std::format!("{0}",id.r#fn)"##),
            ("{snap[name]}{snap[0]}", r#"::std::format!("{0}{1}",snap["name"],snap[0])"#),
            ("{snap[a-b: }>]}", r#"::std::format!("{0}",snap["a-b:}>"])"#),
            ("<type>", r#"::std::format!("{0}",r#type)"#),
            ("<r#type>", r#"::std::format!("{0}",r#type)"#),
            ("<f_name>", r#"::std::format!("resize")"#),
            ("<Self::ID>-<LIMIT>", r#"::std::format!("{0}-{1}",Self::ID,LIMIT)"#),
            ("{limits::MAX.len()}", r#"::std::format!("{0}",limits::MAX.len())"#),
            ("<f_name:>9>", r#"closes nothing"#),
            ("<f_name.len()>", r#"::std::format!("{0}","resize".len())"#),
        ] {
            match rendered(template) {
                Ok(rendered) => assert_eq!(rendered, expected, "{template}"),
                Err(problem) => assert!(problem.contains(expected), "{template}: {problem}"),
            }
        }
    }

    #[test]
    fn format_specs_are_kept() {
        for (template, expected) in [
            ("{id:08x}<id:?>", r#"::std::format!("{0:08x}{1:?}",id,id)"#),
            ("{id:>width$}", r#"::std::format!("{0:>1$}",id,width)"#),
            ("{id:$>1.width$}", r#"::std::format!("{0:$>1.1$}",id,width)"#),
            ("{id::>4}{Self::ID:>4}", r#"::std::format!("{0::>4}{1:>4}",id,Self::ID)"#),
            ("{snap[a:b]:<4}", r#"::std::format!("{0:<4}",snap["a:b"])"#),
        ] {
            assert_eq!(rendered(template).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn doubled_marks_are_text() {
        assert_eq!(rendered("<<id>>{{}}").as_deref(), Ok(r#"::std::format!("<id>{{}}")"#));
        assert_eq!(rendered("{{<id>}}").as_deref(), Ok(r#"::std::format!("{{{0}}}",id)"#));
    }

    #[test]
    fn faults_are_explained() {
        for (template, expected) in [
            ("", "empty"),
            ("a<id", "`<id` is not closed; write `<<`"),
            ("a}", "`}` closes nothing; write `}}`"),
            ("<>", "placeholder `<>`: it starts with no name"),
            (
                "<di>",
                "no parameter `di` (did you mean `id`?); the parameters are `self`, `id`, `snap`, `width`, `type`",
            ),
            ("<r#typ>", "no parameter `r#typ` (did you mean `type`?); "),
            ("<fname>", "no parameter `fname` (did you mean `f_name`?); "),
            ("<other>", "no parameter `other`; "),
            ("<id.>", "nothing follows a `.`"),
            (
                "<id.fn>",
                "`fn` is not the name of a field or method, as it is a keyword; write `r#fn` for",
            ),
            ("<id.self>", "`self` is not the name of a field or method"),
            ("<id.get(1)>", "only `get()` is possible"),
            ("{snap[]}", "`[]` is not a key"),
            ("{snap[\"a\"]}", "without quotes"),
            ("{snap[a}", "is not closed"),
            ("<id+1>", "unexpected `+`"),
            ("<Self::>", "no parameter `Self`"),
            ("<Self::fn>", "`Self::fn` is not a path"),
            ("<Limit>", "no parameter `Limit`"),
            ("<id.99999999999999999999>", "too large"),
            ("{id:.*}", "cannot be used as a format spec"),
            ("{id:>size$}", "no parameter `size`"),
            ("{id:>1$}", "give its name"),
        ] {
            let problem = rendered(template).expect_err(template);
            assert!(problem.contains(expected), "{template}: {problem}");
        }
    }

    #[test]
    fn all_faulty_placeholders_are_reported() {
        let problem = rendered("<a>-<b>-<id>").expect_err("two unknown names");
        assert!(problem.contains("`<a>`") && problem.contains("`<b>`"), "{problem}");
    }
}
