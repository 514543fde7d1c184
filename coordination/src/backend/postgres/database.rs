//! The database behind a connection: who answers, and our schema in it, which is made if it is not there.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio_postgres::{Client, NoTls, Row};

use super::config::Schema;
use super::error::failure;
use crate::backend::server::connections::Failure;
use crate::characteristics::Durability;
use crate::error::{Error, ErrorKind};

/// Tables and functions. `{schema}` stands for the schema in quotes, `{schema_name}` for its name, and `{namespace}` for the
/// namespace where none is named.
const SCHEMA: &str = include_str!("schema.sql");
/// The version of the schema's text: a change of the text needs another number, which a test makes sure of. A library of one
/// version refuses a schema of another, as functions that exist are never made again.
const VERSION: i32 = 4;
/// The oldest server, as it says itself: 12.
const OLDEST: i32 = 120_000;
/// How many of our steps may wait for a replica's word, each on a connection that was given up meanwhile.
const WAITING: i64 = 2;
/// The namespace where a transaction of a user's names none: that where a URL names none.
const NAMESPACE: &str = "coordination";

/// Who answers, and what is set up there.
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
/// A step waits for a lock for one of so many parts of a heartbeat's time: half as many steps may be before the heartbeat.
const PARTS: u32 = 8;
/// A step waits no longer than this for a lock, in any case.
const LONGEST: Duration = Duration::from_millis(250);

/// What a role may not do that all steps do; empty: nothing.
const RIGHTS: &str = "
SELECT coalesce(string_agg(c.relname, ', '), '') AS missing
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1 AND c.relkind = 'r' AND c.relname <> 'version'
    AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
      AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))";

/// With what a connection begins where the role or the database says that transactions begin otherwise.
pub(super) const SETTINGS: &str =
    r"-c default_transaction_isolation=read\ committed -c default_transaction_read_only=off";

/// A server, as it was found when a connection was made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// Whether what is committed is on the disk.
    is_synced: bool,
    /// Whether replicas confirm what is committed.
    is_confirmed: bool,
    has_replicas: bool,
    /// Whether transactions begin as our steps need them.
    pub(super) begins_otherwise: bool,
    /// Whether something between gives us a connection of its own to the server, and perhaps each transaction another one.
    pub(super) is_pooled: bool,
}

impl Server {
    /// Looks who is there, and makes our schema if it is not there and can be made.
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
        // Their connections end with them only, and nothing that is begun now would be answered before them.
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
        // Nothing can be made in a transaction that may not write.
        if server.begins_otherwise {
            return Ok(server);
        }
        if !get::<bool>(&found, "has_schema")? {
            client.batch_execute(&installation(schema)).await.map_err(failed)?;
        }
        check_version(client, schema).await?;
        Ok(server)
    }

    /// Fails if the role may not do what all steps do: told by who connects, and not by the first release.
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

    /// A crash of the process loses nothing, as what is committed is in the system's hands.
    pub(super) fn survives_power_loss(self) -> Durability {
        if self.is_synced { Durability::Yes } else { Durability::No }
    }

    pub(super) fn survives_failover(self) -> Durability {
        if self.is_confirmed { Durability::Yes } else { Durability::No }
    }

    /// Why two may hold while servers are cut off from each other.
    pub(super) fn partition_overlap(self) -> Option<&'static str> {
        let may_part = self.has_replicas && !self.is_confirmed;
        may_part.then_some(
            "a replica that is made the primary does not know of the last grants, and the old one goes on until it is \
             stopped: set synchronous_standby_names",
        )
    }
}

/// Makes the schema, unless somebody else has made it meanwhile, in one transaction.
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

/// The number of the server's process that it told when the connection was made; a pooler tells one that it made up. The
/// client crate shows it in a request to cancel only, so one is written to ourselves.
async fn process_of(client: &Client) -> Option<i32> {
    let (mut ours, theirs) = tokio::io::duplex(64);
    client.cancel_token().cancel_query_raw(theirs, NoTls).await.ok()?;
    // Length, code, process, key.
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
        assert_eq!((VERSION, &*digest), (4, "1c20c4076ab53ff9"), "a changed schema needs a new version");
    }
}
