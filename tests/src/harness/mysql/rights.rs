//! A user who has no rights but those that the store's page asks for.

use coordination::blocking::Coordinator;

use super::{Mysql, USER};

/// What stands before the address in the URLs of the user.
pub(super) const RESTRICTED: &str = "app:secret@";
const PAGE: &str = include_str!("../../../../docs/backends/mysql.md");

/// Makes the library's tables, and then the user, with the page's rights.
pub(super) fn make_user(mysql: &Mysql) {
    let address = mysql.nodes[0].address();
    let url = format!("mysql://{USER}@{address}?ssl-mode=disabled");
    let made = Coordinator::connect(&url).and_then(|coordinator| coordinator.stop());
    made.expect("the user who may do everything makes the tables");
    mysql.ask("CREATE USER 'app' IDENTIFIED BY 'secret'");
    for right in rights() {
        mysql.ask(&right.replace("ON app.*", "ON coordination.*"));
    }
}

/// The statements of the page that give the user the rights.
fn rights() -> impl Iterator<Item = &'static str> {
    PAGE.lines().filter(|line| line.starts_with("GRANT "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_rights() {
        assert_eq!(rights().count(), 1);
    }
}
