//! The rights of a user on an SQL server who has those that the store's page asks for, and no others.

use coordination::blocking::Coordinator;

/// Makes the library's tables, by connecting once as a user who may do that.
pub(super) fn make_tables(url: &str) {
    let made = Coordinator::connect(url).and_then(|coordinator| coordinator.stop());
    made.expect("the user may make tables");
}

/// The statements of the page that give the user the rights.
pub(super) fn grants(page: &'static str) -> impl Iterator<Item = &'static str> {
    page.lines().filter(|line| line.starts_with("GRANT "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_the_rights() {
        let mysql = grants(include_str!("../../../docs/backends/mysql.md"));
        let postgres = grants(include_str!("../../../docs/backends/postgres.md"));
        assert_eq!((mysql.count(), postgres.count()), (1, 2));
    }
}
