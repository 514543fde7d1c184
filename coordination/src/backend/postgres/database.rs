//! The database behind a connection: which server answers, and our schema in it, which is created if it does not exist.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio_postgres::{Client, NoTls, Row};

use super::config::Schema;
use super::error::failure;
use crate::backend::server::connections::Failure;
use crate::characteristics::Durability;
use crate::error::{Error, ErrorKind};

/// The statements that create our tables and functions. `{schema}` stands for the schema in quotes, `{schema_name}` for its name,
/// and `{namespace}` for the default namespace.
const SCHEMA: &str = include_str!("schema.sql");
/// The version of the schema's text: a change of the text needs another number, which a test makes sure of. A library of one
/// version refuses a schema of another, as functions that exist are never made again.
const VERSION: i32 = 4;
/// The oldest version that can be used: 12, in the form in which a server reports its version.
const OLDEST: i32 = 120_000;
/// If this many server processes of this client wait for a replica's confirmation, no further connection is made. They belong to
/// connections that were given up, and a new call would wait behind them.
const WAITING: i64 = 2;
/// The namespace of `coordination_fence` if its caller names none. A URL that names no namespace has the same.
const NAMESPACE: &str = "coordination";

/// Asks for the server's version, role and settings, and whether the schema exists; sets for how long our functions wait for a
/// lock.
const GREETING: &str = "
SELECT current_setting('server_version_num')::integer AS server_version,
  pg_is_in_recovery() AS is_replica,
  current_setting('default_transaction_isolation') <> 'read committed'
    OR current_setting('default_transaction_read_only') = 'on' AS begins_otherwise,
  current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on' AS is_synced,
  current_setting('synchronous_standby_names') <> '' AS is_confirmed,
  EXISTS (SELECT FROM pg_stat_replication) AS has_replicas,
  (SELECT count(*) FROM pg_stat_activity
    WHERE wait_event = 'SyncRep' AND application_name = current_setting('application_name')) AS waiting,
  pg_backend_pid() AS process,
  to_regclass($1) IS NOT NULL AS has_schema,
  set_config('coordination.lock_timeout', '{lock_timeout}ms', false) AS lock_timeout";
/// Our functions wait for a lock for as long as a heartbeat may take (the patience), divided by this. So a heartbeat is in time
/// even if `PARTS / 2` calls that wait for locks were sent before it.
const PARTS: u32 = 8;
/// The longest time that our functions wait for a lock.
const LONGEST: Duration = Duration::from_millis(250);

/// The query for the tables in which the role lacks a right that our functions need; its answer is empty if there are none.
const RIGHTS: &str = "
SELECT coalesce(string_agg(c.relname, ', '), '') AS missing
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname <> 'version'
    AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
      AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))";

/// The start-up settings of a connection if the role or the database has defaults under which our functions fail.
pub(super) const SETTINGS: &str =
    r"-c default_transaction_isolation=read\ committed -c default_transaction_read_only=off";

/// What was found out about the server when a connection was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Whether a committed transaction is on the disk (`fsync`, `full_page_writes`).
    is_synced: bool,
    /// Whether a commit waits for replicas (`synchronous_standby_names`).
    is_confirmed: bool,
    has_replicas: bool,
    /// Whether the defaults of new transactions do not suit our functions: another isolation level than read committed, or
    /// read-only.
    pub(super) begins_otherwise: bool,
    /// Whether the connection leads to a pooler, which may give each transaction another connection to the server.
    pub(super) is_pooled: bool,
}

impl Server {
    /// Checks the server, and creates our schema if it does not exist.
    pub(super) async fn greet(
        client: &Client,
        schema: &Schema,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let table = format!("{schema}.version");
        let wait = (patience / PARTS).min(LONGEST).as_millis().max(1);
        let greeting = GREETING.replace("{lock_timeout}", &wait.to_string());
        let found = one_row(client, &greeting, &table).await?;
        if get::<i32>(&found, "server_version")? < OLDEST {
            let message = "the server is older than PostgreSQL 12";
            return Err(Failure::broken(Error::new(ErrorKind::Unsupported, "connect", message)));
        }
        if get(&found, "is_replica")? {
            let message = "the server is a replica, and cannot be written to";
            return Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)));
        }
        // A server process that waits goes on until the replica confirms, and a new call would wait for the replica in the same
        // way. A connection to another server may do better.
        if get::<i64>(&found, "waiting")? >= WAITING {
            let message = "earlier calls wait for a standby yet, which does not confirm them";
            return Err(Failure::broken(Error::new(ErrorKind::Unavailable, "connect", message)));
        }
        let server = Self {
            is_synced: get(&found, "is_synced")?,
            is_confirmed: get(&found, "is_confirmed")?,
            has_replicas: get(&found, "has_replicas")?,
            begins_otherwise: get(&found, "begins_otherwise")?,
            is_pooled: process_of(client).await != Some(get(&found, "process")?),
        };
        // The schema could not be created in a read-only transaction. The caller connects again, with `SETTINGS`.
        if server.begins_otherwise {
            return Ok(server);
        }
        if !get::<bool>(&found, "has_schema")? {
            client.batch_execute(&installation(schema)).await.map_err(failed)?;
        }
        check_version(client, schema).await?;
        Ok(server)
    }

    /// Fails if the role lacks a right that our functions need. This is checked when connecting, as otherwise the first release
    /// might be the first to fail.
    pub(super) async fn check_rights(client: &Client, schema: &Schema) -> Result<(), Failure> {
        let row = one_row(client, RIGHTS, schema.name()).await?;
        let missing: String = get(&row, "missing")?;
        if missing.is_empty() {
            return Ok(());
        }
        let message = format!(
            "the role may not SELECT, INSERT, UPDATE and DELETE in these tables of schema {}: {missing}",
            schema.name()
        );
        Err(Failure::broken(Error::new(ErrorKind::Permission, "connect", message)))
    }

    /// Asks only about the disk: what was committed survives a crash of the server's process in any case, because the operating
    /// system has it.
    pub(super) fn survives_power_loss(self) -> Durability {
        if self.is_synced { Durability::Yes } else { Durability::No }
    }

    pub(super) fn survives_failover(self) -> Durability {
        if self.is_confirmed { Durability::Yes } else { Durability::No }
    }

    /// Why two clients may hold the same lock while servers are cut off from each other; `None`: they cannot.
    pub(super) fn partition_overlap(self) -> Option<&'static str> {
        let may_part = self.has_replicas && !self.is_confirmed;
        may_part.then_some(
            "a replica that is made the primary does not know of the last grants, and the old one goes on until it is \
             stopped: set synchronous_standby_names",
        )
    }
}

/// The statement that creates the schema in one transaction, unless another client has created it before that.
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
        "schema {} is of version {is}, and this release of the library works with version {VERSION}: give it another one, \
         by the option `schema`",
        schema.name()
    );
    Err(Failure::broken(Error::new(ErrorKind::Unsupported, "connect", message)))
}

/// The number of the server process, as it was told when the connection was made. A pooler tells a number of its own, so this
/// number differs from `pg_backend_pid()`. The client crate shows the number only in a cancel request, so such a request is written
/// into a pipe and read from it.
async fn process_of(client: &Client) -> Option<i32> {
    let (mut ours, theirs) = tokio::io::duplex(64);
    client.cancel_token().cancel_query_raw(theirs, NoTls).await.ok()?;
    // The request's fields: length, code, process number, secret key.
    let mut request = [0; 16];
    ours.read_exact(&mut request).await.ok()?;
    request[8..12].try_into().ok().map(i32::from_be_bytes)
}

async fn one_row(client: &Client, query: &str, argument: &str) -> Result<Row, Failure> {
    use tokio_postgres::types::Type;
    client.query_typed_one(query, &[(&argument, Type::TEXT)]).await.map_err(failed)
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
            (4, "1c20c4076ab53ff9"),
            "a changed schema needs a new version"
        );
    }
}
