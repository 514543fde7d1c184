//! A user who has no rights but those that the store's page asks for.

use super::super::rights::{grants, make_tables};
use super::{Mysql, USER};

/// What stands before the address in the URLs of the user.
pub(super) const RESTRICTED: &str = "app:secret@";
const PAGE: &str = include_str!("../../../../docs/backends/mysql.md");

/// Makes the library's tables, and then the user, with the page's rights.
pub(super) fn make_user(mysql: &Mysql) {
    let address = mysql.nodes[0].address();
    make_tables(&format!("mysql://{USER}@{address}?ssl-mode=disabled"));
    mysql.ask("CREATE USER 'app' IDENTIFIED BY 'secret'");
    for right in grants(PAGE) {
        mysql.ask(&right.replace("ON app.*", "ON coordination.*"));
    }
}
