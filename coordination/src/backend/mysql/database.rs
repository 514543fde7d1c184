//! The database behind a connection: which server answers, and our tables and procedures there, which are created if they do not
//! exist.

use mysql_async::prelude::{FromValue, Queryable};
use mysql_async::{Conn, Error as MysqlError, Row};

use super::config::Database;
use super::error::failure;
use crate::backend::server::connections::Failure;
use crate::characteristics::Durability;
use crate::error::{Error, ErrorKind};

/// The statements that create our tables and procedures, separated by lines of two slashes.
const SCHEMA: &str = include_str!("schema.sql");
/// The version of the schema's text: a change of the text needs another number, which a test makes sure of. A library of one
/// version refuses a database of another.
const VERSION: i64 = 3;
/// The oldest versions that can be used: earlier ones have no `SKIP LOCKED`, with which our procedures skip rows that are locked.
const OLDEST_MYSQL: (u32, u32) = (8, 0);
const OLDEST_MARIADB: (u32, u32) = (10, 6);
/// The namespace of `coordination_fence`, whose callers name none. A URL that names no namespace has the same.
const NAMESPACE: &str = "coordination";
/// The server's clock, in microseconds of UTC, so that no time zone matters. It is the time at which the statement began; inside a
/// procedure, each of its statements has its own time.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The settings of each connection, whatever the server, the user or `init_connect` have set. With these, each statement of a
/// procedure sees what was committed before it, waits for a row lock for a second at most, and fails if a value is too long for its
/// column, instead of truncating it.
const SETTINGS: &str = "\
SET NAMES utf8mb4; \
SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 1, \
  lock_wait_timeout = 10, wait_timeout = 28800, completion_type = 'NO_CHAIN', sql_select_limit = 18446744073709551615, \
  sql_safe_updates = 0; \
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// Asks for the server's version, whether it can be written to, and how it writes commits to the disk. Some settings are numbers on
/// some servers and words on others, so they are compared as text.
const GREETING: &str = "\
SELECT VERSION() AS version, \
  CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') OR @@innodb_read_only AS is_replica, \
  @@global.innodb_flush_log_at_trx_commit <> 0 AS is_written, \
  @@global.innodb_flush_log_at_trx_commit IN (1, 3) \
    AND CAST(@@global.innodb_doublewrite AS CHAR) IN ('1', 'ON', 'DETECT_AND_RECOVER') \
    AND (NOT @@global.log_bin OR @@global.sync_binlog = 1) AS is_synced, \
  @@global.log_bin AS may_have_replicas, {identity}";
/// Identifies the server, as an address may lead to several (a proxy, a name with several addresses).
const IDENTITY: &str = "CONCAT_WS('/', @@hostname, @@port, @@server_id) AS identity";

/// Asks MariaDB from how many servers it replicates. MySQL has no such variable and returns no row.
const REPLICATES: &str = "SHOW GLOBAL STATUS LIKE 'Slaves_running'";
/// The query for the same number on MySQL. Group replication is left out, because there the members replicate from each other, the
/// primary too.
const CHANNELS: &str = "\
SELECT CAST((SELECT COUNT(*) FROM performance_schema.replication_connection_status \
    WHERE service_state <> 'OFF' AND channel_name NOT LIKE 'group\\_replication%') \
  + (SELECT COUNT(*) FROM performance_schema.replication_applier_status \
    WHERE service_state <> 'OFF' AND channel_name NOT LIKE 'group\\_replication%') AS CHAR) AS Value";

/// Asks for the settings that say whether this is one of several servers that are written to. A server knows only those of its own
/// kind.
const CLUSTER: &str = "\
SHOW GLOBAL VARIABLES WHERE Variable_name IN \
  ('wsrep_on', 'wsrep_provider', 'group_replication_single_primary_mode')";
/// The statements in `schema.sql` begin like this, and then have the name of what they create.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS ";
const PROCEDURE: &str = "CREATE PROCEDURE ";
/// The table that gives queues their ids. If it is missing while others exist, it must not be created anew: it would give the same
/// ids to other queues, and the rows of the other tables refer to queues by these ids.
const QUEUES: &str = "coordination_queues";
/// Error codes for a missing database and for a missing table.
const NO_DATABASE: u16 = 1049;
const NO_TABLE: u16 = 1146;

/// What was found out about the server when a connection was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Whether a committed transaction has been handed to the operating system (`write`) when the server answers; otherwise only
    /// the server's memory may have it.
    is_written: bool,
    /// Whether a committed transaction is on the disk when the server answers.
    is_synced: bool,
    may_have_replicas: bool,
}

impl Server {
    /// Checks the server, and creates our tables and procedures if they do not exist.
    ///
    /// Also returns which server it is, for [`join`].
    pub(super) async fn greet(
        conn: &mut Conn,
        database: &Database,
    ) -> Result<(Self, String), Failure> {
        let greeting = GREETING.replace("{identity}", IDENTITY);
        let found = all_rows(conn, format!("{SETTINGS}; {greeting}; {REPLICATES}")).await;
        let found = found.map_err(failed)?;
        let (found, told) = found.split_first().ok_or_else(unknown)?;
        check_age(&get::<String>(found, "version")?)?;
        if get(found, "is_replica")? {
            let message = "the server is a replica, or read-only: it cannot be written to";
            return Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)));
        }
        if replicates(conn, told.first()).await? {
            let message = "the server replicates from another one, though it may be written to: `read_only` is to be set on \
                           it, or where it is the primary by now, its replication to be ended";
            return Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)));
        }
        let server = Self {
            is_written: get(found, "is_written")?,
            is_synced: get(found, "is_synced")?,
            may_have_replicas: get(found, "may_have_replicas")?,
        };
        if !choose(conn, database).await? && !install(conn, database).await? {
            let message = "not all of our tables and procedures can be seen by this user";
            return Err(Failure::broken(Error::new(ErrorKind::Permission, "connect", message)));
        }
        Ok((server, get(found, "identity")?))
    }

    /// Fails if the user lacks a right that our procedures need. This is checked when connecting, as otherwise the first release
    /// might be the first to fail. Fails also if other servers are written to besides this one, because row locks of this server
    /// have no effect there.
    pub(super) async fn check_rights(conn: &mut Conn) -> Result<(), Failure> {
        let found = all_rows(conn, format!("{CLUSTER}; CALL coordination_probe()")).await;
        let mut settings = Vec::new();
        for row in found.map_err(failed)? {
            settings.push((get(&row, "Variable_name")?, get(&row, "Value")?));
        }
        match cluster(&settings) {
            None => Ok(()),
            Some(message) => {
                Err(Failure::broken(Error::new(ErrorKind::Unsupported, "connect", message)))
            }
        }
    }

    /// Whether everything that was confirmed survives a crash of the server's process.
    pub(super) fn survives_restart(self) -> Durability {
        if self.is_written { Durability::Yes } else { Durability::No }
    }

    pub(super) fn survives_power_loss(self) -> Durability {
        if self.is_synced { Durability::Yes } else { Durability::No }
    }

    /// Why two clients may hold the same lock while servers are cut off from each other; `None`: they cannot.
    pub(super) fn partition_overlap(self) -> Option<&'static str> {
        self.may_have_replicas.then_some(
            "a replica that is made the primary may not know of the last grants, and the old one goes on until it is stopped",
        )
    }
}

/// Whether the server replicates from another one. `told`: the answer to [`REPLICATES`]; without one, the server is MySQL, and is
/// asked for [`CHANNELS`]. Not every user may read these: then the server is taken for one that does not replicate.
async fn replicates(conn: &mut Conn, told: Option<&Row>) -> Result<bool, Failure> {
    let told = match told {
        Some(told) => get::<String>(told, "Value")?,
        None => match last_row(conn, CHANNELS.to_owned()).await {
            Err(MysqlError::Server(_)) => return Ok(false),
            found => get(&found.map_err(failed)?.ok_or_else(unknown)?, "Value")?,
        },
    };
    Ok(told != "0")
}

/// Prepares a further connection to a server that [`greet`](Server::greet) has checked. Fails if this connection leads to another
/// server, as the address may lead to several.
pub(super) async fn join(
    conn: &mut Conn,
    database: &Database,
    identity: &str,
) -> Result<(), Failure> {
    match last_row(conn, format!("{SETTINGS}; USE {database}; SELECT {IDENTITY}")).await {
        // This server has no such database, so it is not the one that was checked.
        Err(error) if is(&error, NO_DATABASE) => {}
        found => {
            let found = found.map_err(failed)?.ok_or_else(unknown)?;
            if get::<String>(&found, "identity")? == identity {
                return Ok(());
            }
        }
    }
    let message = "the address leads now to one server and now to another";
    Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)))
}

/// Sends several statements as one, and returns the last row of their answers. Sent as one to save round trips: there is little
/// time for making a connection, and the server may be far away.
async fn last_row(conn: &mut Conn, statements: String) -> Result<Option<Row>, MysqlError> {
    all_rows(conn, statements).await.map(|mut rows| rows.pop())
}

/// Sends several statements as one, and returns the rows of all their answers.
async fn all_rows(conn: &mut Conn, statements: String) -> Result<Vec<Row>, MysqlError> {
    let mut answered = conn.query_iter(statements).await?;
    let mut rows = Vec::new();
    while !answered.is_empty() {
        rows.extend(answered.next().await?);
    }
    // If a statement after the first failed, the client crate returns the error only when its answer is asked for.
    answered.drop_result().await?;
    Ok(rows)
}

/// Why a server with these settings cannot be used; `None`: it can.
fn cluster(settings: &[(String, String)]) -> Option<&'static str> {
    let is = |name: &str, wanted: &str| {
        settings.iter().any(|(found, value)| found == name && value.eq_ignore_ascii_case(wanted))
    };
    if is("wsrep_on", "ON") && !is("wsrep_provider", "none") {
        return Some(
            "the server is of a Galera cluster: rows locked on one of its servers are not locked on others",
        );
    }
    is("group_replication_single_primary_mode", "OFF").then_some(
        "the server is of a group with several primaries: rows locked on one of them are not locked on others",
    )
}

fn check_age(version: &str) -> Result<(), Failure> {
    let mut numbers = version.split(|sign: char| !sign.is_ascii_digit()).map(str::parse::<u32>);
    let mut number = || numbers.next().and_then(Result::ok).unwrap_or_default();
    let found = (number(), number());
    let oldest = if version.contains("MariaDB") { OLDEST_MARIADB } else { OLDEST_MYSQL };
    if found >= oldest {
        return Ok(());
    }
    let message = "the server is older than MariaDB 10.6 or MySQL 8.0";
    Err(Failure::broken(Error::new(ErrorKind::Unsupported, "connect", message)))
}

/// Makes the database the connection's current one; creates it if it is the default one and does not exist. Returns whether our
/// tables and procedures exist.
async fn choose(conn: &mut Conn, database: &Database) -> Result<bool, Failure> {
    let using = format!("USE {database}; {}", find_version());
    let found = match last_row(conn, using.clone()).await {
        Err(error) if database.is_default && is(&error, NO_DATABASE) => {
            last_row(conn, format!("CREATE DATABASE IF NOT EXISTS {database}; {using}")).await
        }
        found => found,
    };
    is_ours(found, database)
}

/// The query for the version of our tables and procedures, and whether all exist: a dump lacks the procedures unless they were
/// asked for. It finds every procedure that the user may call.
fn find_version() -> String {
    let [tables, procedures] = [TABLE, PROCEDURE].map(|made| {
        let names =
            statements().filter_map(|statement| Some(format!("'{}'", made_by(&statement, made)?)));
        names.collect::<Vec<_>>()
    });
    let (table_count, procedure_count) = (tables.len(), procedures.len());
    let tables_there = "information_schema.tables WHERE table_schema = DATABASE() AND table_name";
    let procedures_there =
        "information_schema.routines WHERE routine_schema = DATABASE() AND routine_name";
    format!(
        "SELECT version, (SELECT COUNT(*) FROM {tables_there} = '{QUEUES}') AS has_queues, \
           (SELECT COUNT(*) FROM {tables_there} IN ({})) = {table_count} \
           AND (SELECT COUNT(*) FROM {procedures_there} IN ({})) = {procedure_count} AS is_whole \
         FROM coordination_version",
        tables.join(", "),
        procedures.join(", ")
    )
}

/// The name of the table or procedure that a statement creates.
fn made_by<'a>(statement: &'a str, made: &str) -> Option<&'a str> {
    let (_, rest) = statement.split_once(made)?;
    rest.split([' ', '(']).next()
}

/// Whether our tables and procedures exist, from the answer to [`find_version`]. Fails if they are of another version.
fn is_ours(found: Result<Option<Row>, MysqlError>, database: &Database) -> Result<bool, Failure> {
    let found = match found {
        Err(error) if is(&error, NO_TABLE) => None,
        found => found.map_err(failed)?,
    };
    let Some(found) = found else { return Ok(false) };
    let version: i64 = get(&found, "version")?;
    if version == VERSION && !get::<bool>(&found, "has_queues")? {
        let message = format!(
            "in database {database} the table {QUEUES} is missing, or may not be seen: restore it, or drop all tables whose \
             names begin with coordination_"
        );
        return Err(Failure::broken(Error::new(ErrorKind::Corrupt, "connect", message)));
    }
    if version == VERSION {
        return get(&found, "is_whole");
    }
    let message = format!(
        "the tables in database {database} are of version {version}, and this release of the library works with version \
         {VERSION}: give it another database, by the URL's path"
    );
    Err(Failure::broken(Error::new(ErrorKind::Unsupported, "connect", message)))
}

/// Creates the tables and procedures, unless another client has created them since they were looked for. Returns whether they
/// exist.
///
/// The version is written last. So if a client stops in the middle, there is no version, and the next client creates everything
/// again.
async fn install(conn: &mut Conn, database: &Database) -> Result<bool, Failure> {
    let lock = format!("CONCAT('coordination.', MD5('{}'))", database.name.replace('\'', "''"));
    // The lock ends with the connection at the latest.
    let locked = format!("DO GET_LOCK({lock}, 10); {}", find_version());
    if !is_ours(last_row(conn, locked).await, database)? {
        let mut all: Vec<_> = statements().collect();
        all.push(format!("INSERT IGNORE INTO coordination_version VALUES ({VERSION})"));
        conn.query_drop(all.join(";\n")).await.map_err(failed)?;
    }
    let released = format!("DO RELEASE_LOCK({lock}); {}", find_version());
    let released = last_row(conn, released).await;
    is_ours(released, database)
}

/// The statements of the schema. A procedure is dropped first, because one may be left from an installation that stopped in the
/// middle.
fn statements() -> impl Iterator<Item = String> {
    SCHEMA.split("\n//\n").map(|statement| {
        let text = statement.trim().replace("{now}", NOW).replace("{namespace}", NAMESPACE);
        match made_by(&text, PROCEDURE) {
            Some(procedure) => format!("DROP PROCEDURE IF EXISTS {procedure}; {text}"),
            None => text,
        }
    })
}

fn is(error: &MysqlError, code: u16) -> bool {
    matches!(error, MysqlError::Server(said) if said.code == code)
}

fn get<T: FromValue>(row: &Row, name: &str) -> Result<T, Failure> {
    row.get_opt(name).and_then(Result::ok).ok_or_else(unknown)
}

fn unknown() -> Failure {
    let message = "the server's answer is none that this library knows";
    Failure::broken(Error::new(ErrorKind::Corrupt, "connect", message))
}

fn failed(error: MysqlError) -> Failure {
    failure("connect", &error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::server::sql::digest;

    #[test]
    fn another_schema_has_another_version() {
        let digest = digest(SCHEMA);
        assert_eq!(
            (VERSION, &*digest),
            (3, "80fd58dd7457ed09"),
            "a changed schema needs a new version"
        );
    }

    #[test]
    fn only_servers_that_skip_locked_rows_will_do() {
        for version in ["8.0.36", "8.4.2-log", "9.1.0", "10.6.1-MariaDB", "11.4.3-MariaDB-log"] {
            check_age(version).expect(version);
        }
        for version in ["5.7.44", "10.5.23-MariaDB", "5.5.5-10.3.1-MariaDB", "", "x"] {
            check_age(version).expect_err(version);
        }
    }

    #[test]
    fn a_server_of_several_that_are_written_to_is_refused() {
        let of = |settings: &[(&str, &str)]| {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            cluster(&settings.iter().map(owned).collect::<Vec<_>>()).is_some()
        };
        assert!(of(&[("wsrep_on", "ON"), ("wsrep_provider", "/usr/lib/libgalera_smm.so")]));
        assert!(!of(&[("wsrep_on", "ON"), ("wsrep_provider", "none")]));
        assert!(!of(&[("wsrep_on", "OFF"), ("wsrep_provider", "/usr/lib/libgalera_smm.so")]));
        assert!(of(&[("group_replication_single_primary_mode", "OFF")]));
        assert!(!of(&[("group_replication_single_primary_mode", "ON")]) && !of(&[]));
    }

    #[test]
    fn all_that_is_made_is_looked_for() {
        let find = find_version();
        assert!(
            find.contains("'coordination_version', ") && find.contains(", 'coordination_fence')")
        );
        assert!(find.contains(") = 7 AND ") && find.contains(") = 27 AS "), "{find}");
    }

    #[test]
    fn each_statement_stands_by_itself() {
        let all: Vec<_> = statements().collect();
        assert_eq!(all.iter().filter(|text| text.contains("CREATE TABLE")).count(), 7);
        assert!(all.iter().all(|text| !text.contains(['{', '}'])));
        let fence = all.last().expect("there are some");
        assert!(
            fence.starts_with("DROP PROCEDURE IF EXISTS coordination_fence; -- ")
                || fence.starts_with("DROP PROCEDURE IF EXISTS coordination_fence; CREATE"),
            "{fence}"
        );
    }
}
