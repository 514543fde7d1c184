//! The page that `tests/performance` writes.

use std::process::Command;

/// Its drawing is checked on invented data; and a page that is there has the figures of its data, and no others.
#[test]
fn the_page_of_figures_is_drawn_from_its_data() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/performance");
    let Ok(checked) = Command::new("python3").args([script, "--check"]).output() else {
        println!("not checked: there is no Python");
        return;
    };
    let said = [checked.stdout, checked.stderr].concat();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&said));
}
