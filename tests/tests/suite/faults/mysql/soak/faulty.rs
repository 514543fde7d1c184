//! How the rows break MariaDB that are the same on each store on an SQL server.

use std::os::unix::fs::symlink;

use coordination_tests::harness::{Mounted, Mysql, WallClock, wait_until};

use super::LONG;
use crate::sql::faults::Faulty;
use crate::sql::url;

impl Faulty for Mysql {
    const NOW: &'static str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
    const SECONDS: &'static str = "SELECT UNIX_TIMESTAMP()";
    const CROWD: &'static str = "
        USE coordination;
        INSERT INTO coordination_sessions (id, namespace, member, lease, expires, generation)
          SELECT CONCAT('dead', seq), 'coordination', CONCAT('dead', seq), 600000000,
            TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 600000000, 1 FROM seq_1_to_10000;
        INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
          SELECT e.queue, e.seq + n.seq, CONCAT('dead', n.seq), CONCAT('dead', n.seq), FALSE, 1, e.text
          FROM coordination_entries e, seq_1_to_10000 n;
        UPDATE coordination_queues SET last = last + 10000, changes = changes + 1";
    const USED: &'static str = "USE coordination;
        INSERT INTO coordination_queues (path, last, changes)
          SELECT CONCAT('coordination/lock/used-', seq), 1, 1 FROM seq_1_to_20000";

    fn start_by(clock: &WallClock) -> Self {
        Self::options().clock(clock).start()
    }

    fn save(&self) {
        Self::save(self);
    }

    fn restore(&self) {
        Self::restore(self);
    }

    /// The directory of a database may be a link. If it is there, so is the database.
    fn on_a_small_disk(&self) -> (Mounted, String) {
        let disk = Mounted::new("size=8m,mode=0777");
        symlink(disk.path(), self.directory().join("n0/coordination")).expect("there is none yet");
        (disk, url(self))
    }

    fn each_right() -> Vec<[String; 3]> {
        let rights = ["SELECT", "INSERT", "UPDATE", "DELETE", "EXECUTE"].map(|right| {
            let on = format!("{right} ON coordination.*");
            [format!("REVOKE {on} FROM app"), format!("GRANT {on} TO app"), right.to_owned()]
        });
        rights.into()
    }

    /// With semi-synchronous replication, for the confirmation of which a commit waits for an hour.
    fn confirmed() -> Self {
        let mysql = Self::options().replicas(1).start();
        let replica = "SET GLOBAL rpl_semi_sync_slave_enabled = 1; STOP SLAVE IO_THREAD; START SLAVE IO_THREAD";
        mysql.try_ask_at(1, replica).expect("it is a replica");
        mysql.ask(
            "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC';
             SET GLOBAL rpl_semi_sync_master_timeout = 3600000; SET GLOBAL rpl_semi_sync_master_enabled = 1",
        );
        let confirms = "SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_clients'";
        assert!(wait_until(LONG, || mysql.ask(confirms).ends_with("\t1")), "nobody confirms");
        mysql
    }

    fn cut_off(&self) {
        self.try_ask_at(1, "STOP SLAVE IO_THREAD").expect("it is a replica");
        let done = "SELECT COUNT(*) FROM information_schema.processlist
                      WHERE state LIKE 'Slave has read all relay log%'";
        let is_done = || self.try_ask_at(1, done).as_deref() == Ok("1");
        assert!(wait_until(LONG, is_done), "{:?}", self.try_ask_at(1, "SHOW PROCESSLIST"));
    }

    fn promote_replica(&self) {
        self.promote(1);
    }
}
