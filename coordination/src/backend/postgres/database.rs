//! Checks the server and the database behind a connection, and creates our schema in the database if it does not exist.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio_postgres::{Client, NoTls, Row};

use super::config::Schema;
use super::error::failure;
use crate::backend::server::connections::Failure;
use crate::characteristics::{Durability, ServerInfo, ahead_ms};
use crate::error::{Error, ErrorKind};

/// The statements that create our tables and functions. Before they are sent, `{schema}` is replaced by the schema's name in
/// quotes, `{schema_name}` by the name without quotes, and `{namespace}` by the default namespace.
const SCHEMA: &str = include_str!("schema.sql");
/// The version of the schema's statements. Whoever changes a statement has to change this number too, which a test makes sure of;
/// changes of comments do not count. A library refuses a schema of another version than its own, because it never replaces
/// functions that exist.
const VERSION: i32 = 14;
/// The oldest version that can be used: 13, in the form in which a server reports its version.
const OLDEST: i32 = 130_000;
/// If at least this many server processes of this client still wait for a replica's confirmation, or are at a statement for longer
/// than a heartbeat may take, no further connection to this server is made. These processes belong to connections that the client
/// has given up. A call on a new connection would wait for the replica too, or for the disk.
const WAITING: i64 = 2;
/// The namespace that `coordination_fence` uses if its caller names none. It is also the default for a URL without a namespace.
const NAMESPACE: &str = "coordination";

/// The first query on a connection. It asks for the server's version, clock, role and settings, at which address the server sees its
/// client, and whether the schema exists, and sets how long our functions wait for a lock on this connection. The search path is
/// still the role's: so it names the schema of all that it calls.
const GREETING: &str = "
SELECT pg_catalog.current_setting('server_version_num')::integer AS server_version,
  (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000000)::bigint AS clock,
  pg_catalog.pg_is_in_recovery() AS is_replica,
  pg_catalog.current_setting('default_transaction_isolation') <> 'read committed'
    OR pg_catalog.current_setting('default_transaction_read_only') = 'on' AS begins_otherwise,
  pg_catalog.current_setting('fsync') = 'on' AND pg_catalog.current_setting('full_page_writes') = 'on' AS is_synced,
  pg_catalog.current_setting('synchronous_standby_names') <> '' AS is_confirmed,
  EXISTS (SELECT FROM pg_catalog.pg_stat_replication) AS has_replicas,
  (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity
    WHERE application_name = $2 AND pid <> pg_catalog.pg_backend_pid() AND (wait_event = 'SyncRep'
      OR state = 'active' AND wait_event IS DISTINCT FROM 'ClientWrite'
        AND query_start < pg_catalog.clock_timestamp() - interval '{patience} milliseconds')) AS waiting,
  pg_catalog.pg_backend_pid() AS process,
  pg_catalog.host(pg_catalog.inet_client_addr()) AS client_address, pg_catalog.inet_client_port() AS client_port,
  pg_catalog.to_regclass($1) IS NOT NULL AS has_schema,
  pg_catalog.set_config('coordination.lock_timeout', '{lock_timeout}ms', false) AS lock_timeout";
/// Settings by which the server ends a connection whose client has not acknowledged anything for two minutes, for instance because
/// it has lost its power. By default the server keeps such a connection for hours, and would soon have no room for others.
const SILENT_CLIENTS: &str = "
SET tcp_keepalives_idle = 60; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 6; SET tcp_user_timeout = 120000;";
/// The settings that `begin_step` (`schema.sql`) would otherwise make in each transaction. `has_begun` compares them as texts, so the
/// search path is written here as it is there.
const STEP_SETTINGS: &str = "
SET search_path = pg_catalog, pg_temp;
SELECT set_config('lock_timeout', current_setting('coordination.lock_timeout'), false);";
/// Our functions wait for a lock for at most `patience / PARTS`, where `patience` is the time that a heartbeat may take. So a
/// heartbeat is in time even if `PARTS / 2` calls were sent before it on the same connection, and each of them waits for a lock
/// that long.
const PARTS: u32 = 8;
/// Our functions never wait for a lock longer than this, however long `patience` is.
const LONGEST: Duration = Duration::from_millis(250);

/// The query for the tables of ours on which the role lacks a right that our functions need, and for the functions of ours that the
/// role may not call: by default everybody may call a function, but an administrator may have changed that. Its answer is the names
/// of these tables in one text, and the names of these functions in another; a text is empty if no right is missing. Ours are those
/// that `schema.sql` creates: others may have tables and functions in the same schema.
const RIGHTS: &str = "
SELECT (SELECT coalesce(string_agg(c.relname, ', '), '')
    FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND c.relname IN ({tables})
      AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))) AS tables,
  (SELECT coalesce(string_agg(p.proname, ', '), '')
    FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proname IN ({functions})
      AND NOT has_function_privilege(p.oid, 'EXECUTE')) AS functions
  FROM pg_namespace n WHERE n.nspname = $1";

/// Each statement of the schema that creates a table or a function has one of these two texts, and after it the name.
const TABLE: &str = "CREATE TABLE {schema}.";
const FUNCTION: &str = "CREATE FUNCTION {schema}.";
/// The table that only installing writes to, and the functions that no call of ours needs the right for: the client's statements do
/// not call `coordination_fence`, and `encoded` is called by it alone, with the rights of its owner.
const NOT_NEEDED: [&str; 3] = ["version", "coordination_fence", "encoded"];

/// The settings with which a second connection is made if the first one has shown defaults of the role or the database under which
/// our functions fail.
pub(super) const SETTINGS: &str =
    r"-c default_transaction_isolation=read\ committed -c default_transaction_read_only=off";

/// What was found out about the server when a connection was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// As the server numbers it: 150004 is 15.4.
    version: i32,
    /// By how many milliseconds its clock is ahead of ours.
    clock_ahead_ms: i64,
    /// Whether a committed transaction is on the disk, by the settings `fsync` and `full_page_writes`.
    is_synced: bool,
    /// Whether a commit waits until replicas have confirmed it, by the setting `synchronous_standby_names`.
    is_confirmed: bool,
    has_replicas: bool,
    /// Whether transactions begin with settings under which our functions fail: another isolation level than read committed, or
    /// read-only. Then the connection is made again with `SETTINGS`.
    pub(super) begins_otherwise: bool,
    /// Whether the connection leads to a pooler. A pooler may send each transaction over another connection to the server, so
    /// settings and subscriptions of this connection do not last.
    pub(super) is_pooled: bool,
    /// Whether the connection leads to the server itself, so that statements may be prepared on it: the server has told us the number
    /// of its process, and its client is our end of the connection. A pooler that passes the number on has an end of its own. If
    /// the client's address is translated on the way, or a proxy passes the bytes on, this is false, too, which only costs time.
    pub(super) is_direct: bool,
}

impl Server {
    /// Checks whether the server can be used, and creates our schema if it does not exist. `local`: our end of the connection. `name`:
    /// what the server knows this client's connections by, unless a pooler gives them another name. `patience`: how long a heartbeat
    /// may take.
    pub(super) async fn greet(
        client: &Client,
        local: Option<SocketAddr>,
        schema: &Schema,
        name: &str,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let table = format!("{schema}.version");
        let wait = (patience / PARTS).min(LONGEST).as_millis().max(1);
        let greeting = GREETING
            .replace("{lock_timeout}", &wait.to_string())
            .replace("{patience}", &patience.as_millis().to_string());
        let found = one_row(client, &greeting, &[&table, name]).await?;
        let clock_ahead_ms =
            ahead_ms(u64::try_from(get::<i64>(&found, "clock")?).unwrap_or_default());
        let version = get::<i32>(&found, "server_version")?;
        if version < OLDEST {
            let message = "the server is older than PostgreSQL 13";
            return Err(Failure::broken(Error::new(ErrorKind::Unsupported, "connect", message)));
        }
        if get(&found, "is_replica")? {
            let message = "the server is a replica, and cannot be written to";
            return Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)));
        }
        // A server process that waits for a replica or for the disk does so until that answers, even after its client has gone. A new
        // call on this server would wait for that too. So this fails, and the next server is tried.
        if get::<i64>(&found, "waiting")? >= WAITING {
            let message = "earlier calls are not ended yet: they wait for a standby, which does not confirm them, or for the disk";
            return Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)));
        }
        let is_pooled = process_of(client).await != Some(get(&found, "process")?);
        let seen: (Option<&str>, Option<i32>) =
            (get(&found, "client_address")?, get(&found, "client_port")?);
        let server = Self {
            version,
            clock_ahead_ms,
            is_synced: get(&found, "is_synced")?,
            is_confirmed: get(&found, "is_confirmed")?,
            has_replicas: get(&found, "has_replicas")?,
            begins_otherwise: get(&found, "begins_otherwise")?,
            is_pooled,
            is_direct: !is_pooled && local.is_some_and(|local| is_seen_at(local, seen)),
        };
        // This returns before the schema is created, because creating it would fail in a read-only transaction. The caller connects
        // again with `SETTINGS`, and calls this function again.
        if server.begins_otherwise {
            return Ok(server);
        }
        if !get::<bool>(&found, "has_schema")? {
            client.batch_execute(&installation(schema)).await.map_err(failed)?;
        }
        check_version(client, schema).await?;
        Ok(server)
    }

    pub(super) fn info(self) -> ServerInfo {
        let version = format!("{}.{}", self.version / 10_000, self.version % 10_000);
        ServerInfo { version: Some(version), clock_ahead_ms: Some(self.clock_ahead_ms) }
    }

    /// Makes settings that last as long as this connection: that the server ends it some time after its client has fallen silent; and if
    /// it leads to the server itself, those that each of our functions needs. Behind a pooler this does nothing, because the settings
    /// would last on a server connection that other clients use later.
    pub(super) async fn keep_settings(self, client: &Client) -> Result<(), Failure> {
        if self.is_pooled {
            return Ok(());
        }
        let of_steps = if self.is_direct { STEP_SETTINGS } else { "" };
        let settings = format!("{SILENT_CLIENTS}{of_steps}");
        client.batch_execute(&settings).await.map_err(failed)
    }

    /// Fails if the role lacks a right that our functions need. This is checked when the first connection is made. Otherwise a
    /// missing right might be noticed only when a lock that was granted cannot be released.
    pub(super) async fn check_rights(client: &Client, schema: &Schema) -> Result<(), Failure> {
        let rights = RIGHTS
            .replace("{tables}", &names_of(TABLE))
            .replace("{functions}", &names_of(FUNCTION));
        let row = one_row(client, &rights, &[schema.name()]).await?;
        let missing: [String; 2] = [get(&row, "tables")?, get(&row, "functions")?];
        let rights = ["SELECT, INSERT, UPDATE and DELETE in the tables", "EXECUTE the functions"];
        let missing = missing.iter().zip(rights).filter(|(names, _)| !names.is_empty());
        let missing: Vec<_> = missing.map(|(names, right)| format!("{right} {names}")).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "in schema {}, the role may not {}",
            schema.name(),
            missing.join(", and may not ")
        );
        Err(Failure::broken(Error::new(ErrorKind::Permission, "connect", message)))
    }

    /// What this server does not promise although the one `before` did, for users; `None`: nothing.
    pub(super) fn lacks(self, before: Self) -> Option<&'static str> {
        if before.is_confirmed && !self.is_confirmed {
            return Some(
                "a fail-over may forget the newest grants, because no replica confirms them: set synchronous_standby_names",
            );
        }
        (before.is_synced && !self.is_synced).then_some(
            "a loss of power may forget the newest grants: turn fsync and full_page_writes on",
        )
    }

    /// Whether committed transactions survive a loss of power. (They survive a crash of the server's process in any case, because
    /// the operating system has them by then.)
    pub(super) fn survives_power_loss(self) -> Durability {
        if self.is_synced { Durability::Yes } else { Durability::No }
    }

    pub(super) fn survives_failover(self) -> Durability {
        if self.is_confirmed { Durability::Yes } else { Durability::No }
    }

    /// The reason why two clients may hold the same lock while servers are cut off from each other, for users; `None`: two clients
    /// cannot.
    pub(super) fn partition_overlap(self) -> Option<&'static str> {
        let may_part = self.has_replicas && !self.is_confirmed;
        may_part.then_some(
            "a replica that is made the primary does not know of the last grants, and the old one goes on until it is \
             stopped: set synchronous_standby_names",
        )
    }
}

/// The statement that creates the schema, in one transaction. It locks out other clients that do the same, and does nothing if
/// another client has created the schema by then.
fn installation(schema: &Schema) -> String {
    let schema_text = SCHEMA.replace("{namespace}", NAMESPACE);
    format!(
        "DO $install$ BEGIN
           PERFORM pg_advisory_xact_lock(hashtextextended('coordination.{{schema_name}}', 0));
           IF to_regclass('{{schema}}.version') IS NULL THEN
             IF to_regnamespace('{{schema}}') IS NULL THEN
               CREATE SCHEMA {{schema}};
             END IF;
             EXECUTE $schema$ {schema_text}
               INSERT INTO {{schema}}.version VALUES ({VERSION});
             $schema$;
           END IF;
         END $install$"
    )
    .replace("{schema}", &schema.to_string())
    .replace("{schema_name}", schema.name())
}

async fn check_version(client: &Client, schema: &Schema) -> Result<(), Failure> {
    let rows = client.query_typed(&format!("SELECT version FROM {schema}.version"), &[]).await;
    let rows = rows.map_err(failed)?;
    let version = rows.first().map(|row| get::<i32>(row, "version")).transpose()?;
    if version == Some(VERSION) {
        return Ok(());
    }
    let is = version.map_or_else(|| "none".to_owned(), |version| version.to_string());
    let message = format!(
        "schema {} is of version {is}, and this release of the library works with version {VERSION}: stop all processes that \
         use another release before you drop the schema; or give this release a schema of its own, by the option `schema`, \
         in which its locks do not exclude theirs",
        schema.name()
    );
    Err(Failure::broken(Error::new(ErrorKind::Unsupported, "connect", message)))
}

/// The names of what our functions need among all that the schema's statements of this kind create, as a list of texts in SQL.
fn names_of(creates: &str) -> String {
    let names = SCHEMA.split(creates).skip(1).filter_map(|rest| rest.split([' ', '(']).next());
    let names = names.filter(|name| !NOT_NEEDED.contains(name));
    names.map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ")
}

/// The number of the server process, as the other side told it when the connection was made. If the other side is a pooler, it told
/// a number of its own, and the result differs from `pg_backend_pid()`, by which the caller recognises a pooler. The client crate
/// gives access to the number only through a cancel request. So this has the crate write such a request, not to the server but into
/// a pipe, and reads the number from it.
async fn process_of(client: &Client) -> Option<i32> {
    let (mut ours, theirs) = tokio::io::duplex(64);
    client.cancel_token().cancel_query_raw(theirs, NoTls).await.ok()?;
    // The request has four fields of four bytes each: length, code, process number, secret key.
    let mut request = [0; 16];
    ours.read_exact(&mut request).await.ok()?;
    request[8..12].try_into().ok().map(i32::from_be_bytes)
}

/// Whether this end of a connection is what the server sees as its client, by the address and the port that the server tells. It tells
/// neither if its client is connected by a Unix socket, as a pooler on its host may be.
fn is_seen_at(local: SocketAddr, (address, port): (Option<&str>, Option<i32>)) -> bool {
    let address = address.and_then(|address| address.parse::<IpAddr>().ok());
    // Either side may write an address of IPv4 as one of IPv6 (`::ffff:10.0.0.1`).
    let address = address.map(|address| address.to_canonical());
    address == Some(local.ip().to_canonical()) && port == Some(i32::from(local.port()))
}

async fn one_row(client: &Client, query: &str, arguments: &[&str]) -> Result<Row, Failure> {
    use tokio_postgres::types::{ToSql, Type};
    let typed = |argument| (argument as &(dyn ToSql + Sync), Type::TEXT);
    let arguments: Vec<_> = arguments.iter().map(typed).collect();
    client.query_typed_one(query, &arguments).await.map_err(failed)
}

fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, name: &str) -> Result<T, Failure> {
    row.try_get(name).map_err(failed)
}

fn failed(error: tokio_postgres::Error) -> Failure {
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
            (14, "ec53e4ba04487fde"),
            "a changed schema needs a new version"
        );
    }

    #[test]
    fn a_server_that_took_over_may_promise_less() {
        let server = |is_confirmed, is_synced| Server {
            version: 150_000,
            clock_ahead_ms: 0,
            is_synced,
            is_confirmed,
            has_replicas: false,
            begins_otherwise: false,
            is_pooled: false,
            is_direct: true,
        };
        let lacks =
            |is_confirmed, is_synced| server(is_confirmed, is_synced).lacks(server(true, true));
        assert!(
            lacks(false, true).is_some_and(|reason| reason.contains("synchronous_standby_names"))
        );
        assert!(lacks(true, false).is_some_and(|reason| reason.contains("fsync")));
        assert_eq!(lacks(true, true), None);
        assert_eq!(server(true, true).lacks(server(false, false)), None);
        assert_eq!(server(false, false).lacks(server(false, false)), None, "it is no news");
    }

    #[test]
    fn a_client_is_seen_at_its_own_address_and_port() {
        let is_seen = |local: &str, address, port| {
            is_seen_at(local.parse().expect("an address"), (Some(address), Some(port)))
        };
        assert!(is_seen("10.0.0.1:50000", "10.0.0.1", 50_000));
        assert!(is_seen("[::ffff:10.0.0.1]:50000", "10.0.0.1", 50_000), "as one of IPv6 here");
        assert!(is_seen("10.0.0.1:50000", "::ffff:10.0.0.1", 50_000), "as one of IPv6 there");
        assert!(is_seen("[2001:db8::1]:50000", "2001:db8:0::1", 50_000));
        assert!(is_seen("[fe80::1%3]:50000", "fe80::1", 50_000), "the server names no zone");
        assert!(!is_seen("10.0.0.1:50000", "10.0.0.1", 50_001), "a pooler on this host");
        assert!(!is_seen("10.0.0.1:50000", "10.0.0.2", 50_000), "a pooler elsewhere");
        assert!(!is_seen("10.0.0.1:50000", "2001:db8::1", 50_000));
        assert!(!is_seen("10.0.0.1:50000", "10.0.0.1", 50_000 - 65_536));
        assert!(!is_seen("10.0.0.1:50000", "nowhere", 50_000));
        let local = "10.0.0.1:50000".parse().expect("an address");
        assert!(!is_seen_at(local, (None, None)), "a Unix socket");
        assert!(!is_seen_at(local, (Some("10.0.0.1"), None)));
    }
}
