//! How the rows break PostgreSQL that are the same on each store on an SQL server.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use coordination_tests::harness::{Mounted, Postgres, WallClock};

use super::replicas::{follow, until};
use crate::sql::faults::Faulty;
use crate::sql::url;

/// The tables that need each right.
const TABLES: [&str; 6] = ["queues", "sessions", "entries", "records", "created", "floors"];

impl Faulty for Postgres {
    const NOW: &'static str = "coordination.clock()";
    const SECONDS: &'static str = "SELECT extract(epoch FROM clock_timestamp())::bigint";
    const CROWD: &'static str = "
        INSERT INTO coordination.sessions (id, namespace, member, channel, lease, expires, generation)
          SELECT convert_to('dead' || n, 'UTF8'), 'coordination', convert_to('dead' || n, 'UTF8'), 'c', 600000000,
            coordination.clock() + 600000000, 1 FROM generate_series(1, 10000) n;
        INSERT INTO coordination.entries (queue, seq, id, session, shared, generation, text)
          SELECT e.queue, e.seq + n, convert_to('dead' || n, 'UTF8'), convert_to('dead' || n, 'UTF8'), false, 1, e.text
          FROM coordination.entries e, generate_series(1, 10000) n;
        UPDATE coordination.queues SET last = last + 10000";
    const USED: &'static str = "INSERT INTO coordination.queues (path, last)
        SELECT convert_to('coordination/lock/used-' || n, 'UTF8'), 1 FROM generate_series(1, 20000) n";

    fn start_by(clock: &WallClock) -> Self {
        Self::options().clock(clock).start()
    }

    fn save(&self) {
        Self::save(self);
    }

    fn restore(&self) {
        Self::restore(self);
    }

    /// A tablespace of its own. Servers run as `nobody`, who has to own its directory.
    fn on_a_small_disk(&self) -> (Mounted, String) {
        let disk = Mounted::new("size=24m,mode=0700,uid=65534,gid=65534");
        let above = disk.path().parent().expect("it is mounted in a directory");
        fs::set_permissions(above, Permissions::from_mode(0o711)).expect("the directory is ours");
        self.ask(&format!("CREATE TABLESPACE small LOCATION '{}'", disk.path().display()));
        self.ask("CREATE DATABASE small TABLESPACE small");
        (disk, url(self).replace("/postgres?", "/small?"))
    }

    fn each_right() -> Vec<[String; 3]> {
        let right = |right: &str, (from, to): (&str, &str), named: &str| {
            [
                format!("REVOKE {right} FROM {from}"),
                format!("GRANT {right} TO {to}"),
                named.to_owned(),
            ]
        };
        let app = ("app", "app");
        let mut all = vec![
            right("USAGE ON SCHEMA coordination", app, "schema coordination"),
            right("SELECT ON coordination.version", app, "version"),
        ];
        for table in TABLES {
            for one in ["SELECT", "INSERT", "UPDATE", "DELETE"] {
                all.push(right(&format!("{one} ON coordination.{table}"), app, table));
            }
        }
        for function in ["enter", "leave", "renew"] {
            let execute = format!("EXECUTE ON FUNCTION coordination.{function}");
            all.push(right(&execute, ("PUBLIC", "PUBLIC"), function));
        }
        all
    }

    fn confirmed() -> Self {
        let postgres = Self::options().replicas(1).set("wal_keep_size", "64MB").start();
        // On the primary only: the replica waits for none of its own after its promotion.
        postgres.ask("ALTER SYSTEM SET synchronous_standby_names = '*'");
        postgres.ask("SELECT pg_reload_conf()");
        until(&postgres, 0, "SHOW synchronous_standby_names", "*");
        postgres
    }

    /// What the replica has received, it carries out before it is the primary.
    fn cut_off(&self) {
        follow(self, 1, None);
    }

    fn promote_replica(&self) {
        self.promote(1);
    }
}
