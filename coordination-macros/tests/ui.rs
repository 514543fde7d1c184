//! What `#[synchronized]` accepts and refuses when it is compiled, and in which words.
//!
//! The words are rustc's in part and change with it; `TRYBUILD=overwrite` writes them anew.

#[test]
fn accepts_and_refuses() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/fail/*.rs");
}
