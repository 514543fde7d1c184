//! Checks the server and the database behind a connection, and creates our tables and procedures in the database if they do not
//! exist.

use std::time::Duration;

use mysql_async::prelude::{FromValue, Queryable};
use mysql_async::{Conn, Error as MysqlError, Row};

use super::config::Database;
use super::error::failure;
use crate::backend::server::connections::Failure;
use crate::characteristics::{Durability, ServerInfo, ahead_ms};
use crate::error::{Error, ErrorKind};

/// The statements that create our tables and procedures. They are separated by lines that have only two slashes.
const SCHEMA: &str = include_str!("schema.sql");
/// The version of the schema's statements. Whoever changes a statement has to change this number too, which a test makes sure of;
/// changes of comments do not count. A library refuses a database whose tables have another version than its own.
const VERSION: i64 = 10;
/// The oldest versions that can be used: earlier ones have no `SKIP LOCKED`, with which our procedures skip rows that are locked.
const OLDEST_MYSQL: (u32, u32) = (8, 0);
const OLDEST_MARIADB: (u32, u32) = (10, 6);
/// The namespace in which `coordination_fence` looks, because its caller names none. It is also the default for a URL without a
/// namespace.
const NAMESPACE: &str = "coordination";
/// The SQL expression for the server's time, in microseconds since 1970 in UTC, so that time zones do not matter. The expression
/// gives the time at which its statement began. Inside a procedure, its statement is the one in the procedure, and not the `CALL`.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// The settings that are made on each connection, because the server, the user or `init_connect` may have set others. With them,
/// each statement of a procedure sees what was committed before it began; it waits for a row lock for a second at most; and it
/// fails if a value is too long for its column, instead of truncating the value.
const SETTINGS: &str = "\
SET NAMES utf8mb4; \
SET SESSION autocommit = 1, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 1, \
  lock_wait_timeout = 10, wait_timeout = {kept}, completion_type = 'NO_CHAIN', sql_select_limit = 18446744073709551615, \
  sql_safe_updates = 0; \
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE";

/// The first query on a connection. It asks for the server's version, whether it can be written to, and how it writes commits to
/// the disk. Some settings are numbers on some servers and words on others, so these are compared as text.
const GREETING: &str = "\
SELECT VERSION() AS version, \
  CAST(UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)) AS UNSIGNED) AS clock, \
  CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') OR @@innodb_read_only AS is_replica, \
  @@global.innodb_flush_log_at_trx_commit <> 0 AS is_written, \
  @@global.innodb_flush_log_at_trx_commit IN (1, 3) \
    AND CAST(@@global.innodb_doublewrite AS CHAR) IN ('1', 'ON', 'DETECT_AND_RECOVER') \
    AND (NOT @@global.log_bin OR @@global.sync_binlog = 1) AS is_synced, \
  @@global.log_bin AS may_have_replicas, {identity}";
/// Identifies the server. The three connections of an epoch are compared by it, because an address may lead to several servers, for
/// instance if it is that of a proxy.
const IDENTITY: &str = "CONCAT_WS('/', @@hostname, @@port, @@server_id) AS identity";

/// Asks MariaDB from how many servers it replicates, to find out whether it is a replica. MySQL has no such variable and returns no
/// row.
const REPLICATES: &str = "SHOW GLOBAL STATUS LIKE 'Slaves_running'";
/// Asks MySQL whether it replicates from another server; 0: it does not. Channels of group replication are left out: in a group,
/// all members replicate from each other, so that also the primary would seem to be a replica.
const CHANNELS: &str = "\
SELECT CAST((SELECT COUNT(*) FROM performance_schema.replication_connection_status \
    WHERE service_state <> 'OFF' AND channel_name NOT LIKE 'group\\_replication%') \
  + (SELECT COUNT(*) FROM performance_schema.replication_applier_status \
    WHERE service_state <> 'OFF' AND channel_name NOT LIKE 'group\\_replication%') AS CHAR) AS Value";

/// Asks for the settings that say whether the server belongs to a group in which several servers are written to. MariaDB and MySQL
/// have different settings for that; each returns rows only for those that it has.
const CLUSTER: &str = "\
SHOW GLOBAL VARIABLES WHERE Variable_name IN \
  ('wsrep_on', 'wsrep_provider', 'group_replication_single_primary_mode')";
/// Each statement in `schema.sql` has one of these two texts, and after it the name of the table or procedure that it creates.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS ";
const PROCEDURE: &str = "CREATE PROCEDURE ";
/// The table that gives queues their ids. If only this table is missing, it must not be created again: a new table would begin with
/// the first id again, and rows in the other tables, which refer to queues by these ids, would belong to other queues.
const QUEUES: &str = "coordination_queues";
/// The server's error codes for a missing database and for a missing table.
const NO_DATABASE: u16 = 1049;
const NO_TABLE: u16 = 1146;

/// How long a client waits, in seconds, for another one that is creating the tables.
const INSTALLING: u32 = 10;

/// What was found out about the server when a connection was made.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Default))]
pub(super) struct Server {
    pub(super) info: ServerInfo,
    /// Whether a committed transaction has been written to a file, though perhaps not synced, when the server answers. Otherwise it
    /// may be in the server's memory only, and is lost if the server crashes.
    is_written: bool,
    /// Whether a committed transaction is on the disk when the server answers.
    is_synced: bool,
    may_have_replicas: bool,
}

impl Server {
    /// Checks whether the server can be used, and creates our tables and procedures if they do not exist. `kept`: for how long the
    /// server has to keep a connection on which nothing is sent.
    ///
    /// The text that is returned identifies the server. `join` compares the other connections of the epoch with it.
    pub(super) async fn greet(
        conn: &mut Conn,
        database: &Database,
        kept: Duration,
    ) -> Result<(Self, String), Failure> {
        let greeting = GREETING.replace("{identity}", IDENTITY);
        let settings = settings(kept);
        let found = all_rows(conn, format!("{settings}; {greeting}; {REPLICATES}")).await;
        let found = found.map_err(failed)?;
        let (found, told) = found.split_first().ok_or_else(unknown)?;
        let clock_ahead_ms = Some(ahead_ms(get(found, "clock")?));
        let version = get::<String>(found, "version")?;
        check_age(&version)?;
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
            info: ServerInfo { version: Some(version), clock_ahead_ms },
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

    /// Fails if the user lacks a right that our procedures need. This is checked when the first connection is made. Otherwise a
    /// missing right might be noticed only when a lock that was granted cannot be released. Also fails if other servers of a group
    /// are written to besides this one, because row locks of this server have no effect there.
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

    /// Whether committed transactions survive a crash of the server's process.
    pub(super) fn survives_restart(&self) -> Durability {
        if self.is_written { Durability::Yes } else { Durability::No }
    }

    pub(super) fn survives_power_loss(&self) -> Durability {
        if self.is_synced { Durability::Yes } else { Durability::No }
    }

    /// The reason why two clients may hold the same lock while servers are cut off from each other, for users; `None`: two clients
    /// cannot.
    pub(super) fn partition_overlap(&self) -> Option<&'static str> {
        self.may_have_replicas.then_some(
            "a replica that is made the primary may not know of the last grants, and the old one goes on until it is stopped",
        )
    }
}

/// Whether the server replicates from another one, so that it is a replica. `told` is the row of the answer to `REPLICATES`. If
/// there is no row, the server is MySQL, and the query `CHANNELS` is sent. If the server refuses this query, usually because the
/// user lacks a right, the server is taken not to be a replica.
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

/// Prepares the second or third connection of an epoch: makes the settings and chooses the database. Fails if this connection leads
/// to another server than the one that [`greet`](Server::greet) has checked, which `identity` identifies.
pub(super) async fn join(
    conn: &mut Conn,
    database: &Database,
    identity: &str,
    kept: Duration,
) -> Result<(), Failure> {
    let settings = settings(kept);
    match last_row(conn, format!("{settings}; USE {database}; SELECT {IDENTITY}")).await {
        // This server does not have our database, so it is not the server that was checked.
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

fn settings(kept: Duration) -> String {
    SETTINGS.replace("{kept}", &kept.as_secs().to_string())
}

/// Sends several statements in one request, and returns the last row of all their answers. One request saves round trips: the time
/// for making a connection is limited, and the server may be far away.
async fn last_row(conn: &mut Conn, statements: String) -> Result<Option<Row>, MysqlError> {
    all_rows(conn, statements).await.map(|mut rows| rows.pop())
}

/// Sends several statements in one request, and returns the rows of all their answers.
async fn all_rows(conn: &mut Conn, statements: String) -> Result<Vec<Row>, MysqlError> {
    let mut answered = conn.query_iter(statements).await?;
    let mut rows = Vec::new();
    while !answered.is_empty() {
        rows.extend(answered.next().await?);
    }
    // This reads what is left of the answers. If one of the later statements failed, the client crate returns its error only here.
    answered.drop_result().await?;
    Ok(rows)
}

/// The reason why a server with these settings cannot be used: several servers of its group are written to. `None`: it can be used.
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

/// Makes `database` the current database of the connection. If it does not exist and is the default database, creates it. Returns
/// whether all our tables and procedures exist in it.
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

/// The query for the version of our tables and procedures, and for whether all of them exist. Procedures may be missing although
/// the tables exist, because a dump of a database has procedures only if they were asked for. The query finds every procedure that
/// the user may call.
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

/// The name of the table or procedure that a statement creates. `made` is `TABLE` or `PROCEDURE`; `None`: the statement creates
/// nothing of that kind.
fn made_by<'a>(statement: &'a str, made: &str) -> Option<&'a str> {
    let (_, rest) = statement.split_once(made)?;
    rest.split([' ', '(']).next()
}

/// Whether all our tables and procedures exist, by the answer to the query of `find_version`. Fails if they have another version
/// than this library, or if only the table of queues is missing.
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
         {VERSION}: stop all processes that use another release before you drop the tables; or give this release a database \
         of its own, by the URL's path, in which its locks do not exclude theirs"
    );
    Err(Failure::broken(Error::new(ErrorKind::Unsupported, "connect", message)))
}

/// Creates our tables and procedures, unless another client has created them after this client has found them missing. Returns
/// whether they exist afterwards.
///
/// The version is written last. So if a client stops in the middle, the database has no version, and the next client creates
/// everything again.
async fn install(conn: &mut Conn, database: &Database) -> Result<bool, Failure> {
    let lock = format!("CONCAT('coordination.', MD5('{}'))", database.name.replace('\'', "''"));
    // The lock keeps other clients from creating the tables at the same time. If this client stops before it releases the lock, the
    // lock ends with the connection.
    let locked = format!("SELECT COALESCE(GET_LOCK({lock}, {INSTALLING}), 0) AS is_ours");
    let locked = last_row(conn, locked).await.map_err(failed)?.ok_or_else(unknown)?;
    if !get::<bool>(&locked, "is_ours")? {
        let message = format!(
            "another client has been creating the tables in database {database} for {INSTALLING} s and is not done yet"
        );
        return Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)));
    }
    if !is_ours(last_row(conn, find_version()).await, database)? {
        let mut all: Vec<_> = statements().collect();
        all.push(format!("INSERT IGNORE INTO coordination_version VALUES ({VERSION})"));
        conn.query_drop(all.join(";\n")).await.map_err(not_made)?;
    }
    let released = format!("DO RELEASE_LOCK({lock}); {}", find_version());
    let released = last_row(conn, released).await;
    is_ours(released, database)
}

/// The statements that create our tables and procedures. Each procedure is dropped before it is created, because it may exist from
/// an installation that stopped in the middle.
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

/// The failure if our tables and procedures could not be created. If a right is missing for that, they may exist all the same: the server
/// does not show procedures to a user who may not call them.
fn not_made(error: MysqlError) -> Failure {
    let failure = failed(error);
    if failure.error.kind() != ErrorKind::Permission {
        return failure;
    }
    let message = format!(
        "this user cannot see all of our tables and procedures, perhaps because he lacks EXECUTE or another right, and cannot create \
         them: {}",
        failure.error.message()
    );
    let error = Error::new(ErrorKind::Permission, "connect", message);
    Failure { error: error.with_source(failure.error), ..failure }
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
            (10, "395f7d3856e32e50"),
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
        assert!(find.contains(") = 7 AND ") && find.contains(") = 28 AS "), "{find}");
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
