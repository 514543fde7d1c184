-- What stands in the database: made once, under a lock, by whoever finds no version there. Statements are parted by a line of
-- two slashes. `{now}` is the server's clock, and `{namespace}` the namespace where none is named.
--
--   queues     a queue by its path, `<namespace>/<kind>/<name>` as all stores encode them; last: the newest number given
--              in it; first: no entry has a smaller number; changes: another number after each change, by which others find
--              that there was one; version, value: its value
--   entries    the entries of queues by their numbers; generation: of the connection on which one was entered
--   sessions   expires: when the lease ends, 0: it is over and may have entries left, NULL: over, and nothing is left;
--              forget_at: until when it is known that there was one; generation: of its newest connection
--   records    what is beside the values of queues
--   created    writes that created a value: the same call may come again when that is gone
--   floors     numbers that were given in queues of a namespace whose rows are removed
--
-- Times are microseconds of the server's clock, and texts are bytes: no collation, character set or time zone has a part in it.
--
-- Invariants:
--
-- * An entry is made, changed and removed under the lock of its queue's row. So whoever enters sees all who came before
--   him.
-- * A session is over when its row says so, and not when its time has passed: whoever finds the time passed writes that
--   down first, under the lock of the row. A heartbeat on its way has that lock, or comes too late.
-- * Locks are waited for in this order: a queue, and then one's own session. Every other lock is taken if it is free, and
--   what cannot be done without it is left for later. What InnoDB locks besides may still end in a deadlock: such a step is
--   undone as a whole, and made again.
-- * No statement in a loop names a variable that may be long: where statements are logged, the server writes out each variable
--   of each statement.
-- * Each step begins with a ROLLBACK: one before it that was killed, for which the server runs no handler, may have left its
--   transaction open, and START TRANSACTION would commit that.
-- * What is only looked at is looked at by a SELECT: in any other statement, as IF and SET are, InnoDB locks the rows it reads.
-- * While anybody's transaction stays open, what was removed since it began stays in each index. So where rows come and go, a
--   statement looks at a bounded part of an index, and names the index.

CREATE TABLE IF NOT EXISTS coordination_version (version INT NOT NULL PRIMARY KEY) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS coordination_queues (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  path VARBINARY(640) NOT NULL,
  last BIGINT NOT NULL,
  first BIGINT NOT NULL DEFAULT 0,
  changes BIGINT NOT NULL,
  version BIGINT,
  value LONGBLOB,
  UNIQUE KEY path (path)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
//
CREATE TABLE IF NOT EXISTS coordination_sessions (
  id VARBINARY(16) NOT NULL PRIMARY KEY,
  namespace VARBINARY(255) NOT NULL,
  `member` VARBINARY(255),
  lease BIGINT NOT NULL,
  expires BIGINT,
  forget_at BIGINT,
  generation BIGINT NOT NULL,
  UNIQUE KEY `member` (namespace, `member`),
  KEY expires (expires),
  KEY forget_at (forget_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
//
CREATE TABLE IF NOT EXISTS coordination_entries (
  queue BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  id VARBINARY(64) NOT NULL,
  session VARBINARY(16) NOT NULL,
  shared BOOLEAN NOT NULL,
  generation BIGINT NOT NULL,
  text LONGBLOB NOT NULL,
  PRIMARY KEY (queue, seq),
  UNIQUE KEY id (id),
  KEY exclusive (queue, shared, seq),
  KEY session (session, queue, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
//
CREATE TABLE IF NOT EXISTS coordination_records (
  queue BIGINT NOT NULL,
  name VARBINARY(255) NOT NULL,
  data LONGBLOB NOT NULL,
  PRIMARY KEY (queue, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
//
CREATE TABLE IF NOT EXISTS coordination_created (
  queue BIGINT NOT NULL,
  id BIGINT NOT NULL,
  at BIGINT NOT NULL,
  PRIMARY KEY (queue, id),
  KEY at (at)
) ENGINE = InnoDB
//
CREATE TABLE IF NOT EXISTS coordination_floors (
  namespace VARBINARY(255) NOT NULL PRIMARY KEY,
  last BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC
//
-- Fails unless the role may do all that steps do.
CREATE PROCEDURE coordination_probe() SQL SECURITY INVOKER
BEGIN
  INSERT INTO coordination_queues SELECT * FROM coordination_queues WHERE FALSE;
  UPDATE coordination_queues SET last = last WHERE FALSE;
  DELETE FROM coordination_queues WHERE FALSE;
  INSERT INTO coordination_sessions SELECT * FROM coordination_sessions WHERE FALSE;
  UPDATE coordination_sessions SET lease = lease WHERE FALSE;
  DELETE FROM coordination_sessions WHERE FALSE;
  INSERT INTO coordination_entries SELECT * FROM coordination_entries WHERE FALSE;
  UPDATE coordination_entries SET seq = seq WHERE FALSE;
  DELETE FROM coordination_entries WHERE FALSE;
  INSERT INTO coordination_records SELECT * FROM coordination_records WHERE FALSE;
  UPDATE coordination_records SET queue = queue WHERE FALSE;
  DELETE FROM coordination_records WHERE FALSE;
  INSERT INTO coordination_created SELECT * FROM coordination_created WHERE FALSE;
  DELETE FROM coordination_created WHERE FALSE;
  INSERT INTO coordination_floors SELECT * FROM coordination_floors WHERE FALSE;
  UPDATE coordination_floors SET last = last WHERE FALSE;
END
//
-- Fails where the server was made one that is only read: there are users who may write to it all the same. Another server may
-- have taken over, and nothing is granted here any more, and no release confirmed, of which nobody would hear there.
CREATE PROCEDURE coordination_check_writable() SQL SECURITY INVOKER
BEGIN
  IF CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') THEN
    SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'the server is read-only: another may have taken over';
  END IF;
END
//
-- The queue, locked; made if there is none.
CREATE PROCEDURE coordination_lock_queue(of_path VARBINARY(640), OUT its_id BIGINT, OUT its_last BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE its_floor BIGINT DEFAULT 0;
  SELECT q.id, q.last INTO its_id, its_last FROM coordination_queues q WHERE q.path = of_path FOR UPDATE;
  IF its_id IS NULL THEN
    SELECT f.last INTO its_floor FROM coordination_floors f WHERE f.namespace = SUBSTRING_INDEX(of_path, '/', 1);
    -- Whoever comes second has the row's lock then, and not a weaker one that two may have.
    INSERT INTO coordination_queues (path, last, changes) VALUES (of_path, its_floor, {now})
      ON DUPLICATE KEY UPDATE changes = changes + 1;
    SELECT q.id, q.last INTO its_id, its_last FROM coordination_queues q WHERE q.path = of_path FOR UPDATE;
    -- It may have been made, used and pruned by others since.
    SELECT f.last INTO its_floor FROM coordination_floors f WHERE f.namespace = SUBSTRING_INDEX(of_path, '/', 1);
    SET its_last = GREATEST(its_last, its_floor);
  END IF;
END
//
-- Why a step of this session is refused; 'ok': it is not. Until the step is over, the session cannot end.
--
-- A call that was given up may arrive late, but on a connection that was given up too: so none counts that comes on an
-- older connection than another of its session.
CREATE PROCEDURE coordination_admit(of_session VARBINARY(16), of_generation BIGINT, OUT its_status VARCHAR(10))
SQL SECURITY INVOKER
BEGIN
  DECLARE its_expires, its_generation BIGINT;
  CALL coordination_check_writable();
  SELECT s.expires, s.generation INTO its_expires, its_generation
    FROM coordination_sessions s WHERE s.id = of_session FOR UPDATE;
  IF COALESCE(its_expires, 0) <= {now} THEN
    SET its_status = 'lost';
  ELSEIF of_generation < its_generation THEN
    SET its_status = 'stale';
  ELSE
    IF of_generation > its_generation THEN
      UPDATE coordination_sessions SET generation = of_generation WHERE id = of_session;
    END IF;
    SET its_status = 'ok';
  END IF;
END
//
-- Ends a session: it is over from here on, whatever it has left.
CREATE PROCEDURE coordination_end_session(of_session VARBINARY(16)) SQL SECURITY INVOKER
  UPDATE coordination_sessions SET expires = 0, `member` = NULL WHERE id = of_session AND expires > 0
//
-- Ends a session if its time has passed; FALSE: it lives, or somebody is about to say what becomes of it.
CREATE PROCEDURE coordination_end_if_expired(of_session VARBINARY(16), OUT is_over BOOLEAN) SQL SECURITY INVOKER
BEGIN
  DECLARE its_expires BIGINT;
  SET is_over = TRUE;
  SELECT s.expires INTO its_expires FROM coordination_sessions s WHERE s.id = of_session;
  IF its_expires > 0 THEN
    SET its_expires = NULL;
    SELECT s.expires INTO its_expires FROM coordination_sessions s WHERE s.id = of_session FOR UPDATE SKIP LOCKED;
    IF its_expires IS NULL OR its_expires > {now} THEN
      SET is_over = FALSE;
    ELSE
      CALL coordination_end_session(of_session);
    END IF;
  END IF;
END
//
-- Removes an entry of the queue, which is locked; FALSE: a transaction of its holder's has it, see `coordination_fence`.
CREATE PROCEDURE coordination_remove(of_queue BIGINT, of_seq BIGINT, OUT is_gone BOOLEAN) SQL SECURITY INVOKER
BEGIN
  DECLARE found_seq BIGINT;
  SET is_gone = TRUE;
  SELECT e.seq INTO found_seq FROM coordination_entries e
    WHERE e.queue = of_queue AND e.seq = of_seq FOR UPDATE SKIP LOCKED;
  IF found_seq IS NULL THEN
    SELECT COUNT(*) = 0 INTO is_gone FROM coordination_entries e WHERE e.queue = of_queue AND e.seq = of_seq;
  ELSE
    DELETE e FROM coordination_entries e FORCE INDEX (PRIMARY) WHERE e.queue = of_queue AND e.seq = of_seq;
    UPDATE coordination_queues SET changes = changes + 1 WHERE id = of_queue;
  END IF;
END
//
-- Removes what a session that is over has left, as much as one step may, and as far as it is free; how much that was.
CREATE PROCEDURE coordination_clear(of_session VARBINARY(16), most BIGINT, OUT removed BIGINT) SQL SECURITY INVOKER
BEGIN
  DECLARE at_queue, at_seq, next_queue, next_seq, locked BIGINT DEFAULT 0;
  DECLARE is_gone, is_left BOOLEAN;
  DECLARE its_id VARBINARY(16);
  DECLARE seen BIGINT DEFAULT 0;
  SET removed = 0;
  clearing: WHILE seen < most DO
    SET next_queue = NULL, locked = NULL, seen = seen + 1;
    SELECT e.queue, e.seq INTO next_queue, next_seq FROM coordination_entries e
      WHERE e.session = of_session AND e.queue >= at_queue AND (e.queue > at_queue OR e.seq > at_seq)
      ORDER BY e.queue, e.seq LIMIT 1;
    IF next_queue IS NULL THEN
      LEAVE clearing;
    END IF;
    SET at_queue = next_queue, at_seq = next_seq;
    SELECT q.id INTO locked FROM coordination_queues q WHERE q.id = at_queue FOR UPDATE SKIP LOCKED;
    IF locked IS NOT NULL THEN
      CALL coordination_remove(at_queue, at_seq, is_gone);
      SET removed = removed + is_gone;
    END IF;
  END WHILE;
  SELECT EXISTS (SELECT 1 FROM coordination_entries e WHERE e.session = of_session) INTO is_left;
  IF NOT is_left THEN
    -- Two who have removed the rest of each other's sessions would wait for each other.
    SELECT s.id INTO its_id FROM coordination_sessions s
      WHERE s.id = of_session AND s.expires IS NOT NULL FOR UPDATE SKIP LOCKED;
    IF its_id IS NOT NULL THEN
      UPDATE coordination_sessions SET expires = NULL, forget_at = {now} + 60000000 WHERE id = of_session;
    END IF;
  END IF;
END
//
-- Ends some sessions whose time has passed, and removes what they have left: not more than a heartbeat has time for.
--
-- While a transaction of anybody's stays open, each heartbeat leaves something in the index of the times that cannot be removed.
-- So a heartbeat looks at the last seconds only, where all are found whose clients others outlive, and seldom further back.
-- It begins with those that are over (0), at one of them by chance, as the first ones may be locked; then come those that an
-- operator has ended (1).
CREATE PROCEDURE coordination_sweep(all_times BOOLEAN) SQL SECURITY INVOKER
BEGIN
  DECLARE its_now, since BIGINT;
  DECLARE at_time BIGINT DEFAULT -1;
  DECLARE at_id, next_id VARBINARY(16);
  DECLARE is_over BOOLEAN;
  DECLARE removed BIGINT;
  DECLARE budget BIGINT DEFAULT 100;
  DECLARE turn INT DEFAULT 0;
  SET its_now = {now}, at_id = LEFT(SHA1(RAND()), 16);
  SET since = IF(all_times OR RAND() < 0.01, 2, its_now - 30000000);
  sweeping: WHILE turn < 10 AND budget > 0 DO
    SET next_id = NULL;
    IF at_time < 2 THEN
      -- With the plain id, what has another time would be looked at, too.
      SELECT s.id INTO next_id FROM coordination_sessions s FORCE INDEX (expires)
        WHERE s.expires = GREATEST(at_time, 0) AND CONCAT(s.id) > at_id ORDER BY s.id LIMIT 1;
    ELSE
      SELECT s.id, s.expires INTO next_id, at_time FROM coordination_sessions s FORCE INDEX (expires)
        WHERE s.expires <= its_now AND s.expires >= GREATEST(at_time, since) AND (s.expires > at_time OR s.id > at_id)
        ORDER BY s.expires, s.id LIMIT 1;
    END IF;
    IF next_id IS NULL AND at_time >= 2 THEN
      LEAVE sweeping;
    ELSEIF next_id IS NULL THEN
      SET at_time = at_time + 1, at_id = '';
      ITERATE sweeping;
    END IF;
    SET turn = turn + 1, at_id = next_id;
    CALL coordination_end_if_expired(next_id, is_over);
    -- Two who clear one session would be in each other's way.
    SET next_id = NULL;
    SELECT s.id INTO next_id FROM coordination_sessions s WHERE s.id = at_id AND is_over FOR UPDATE SKIP LOCKED;
    IF next_id IS NOT NULL THEN
      CALL coordination_clear(next_id, budget, removed);
      SET budget = budget - removed;
    END IF;
  END WHILE;
  SET turn = 0;
  forgetting: WHILE turn < 20 DO
    SET turn = turn + 1, next_id = NULL;
    SELECT s.id INTO next_id FROM coordination_sessions s FORCE INDEX (forget_at)
      WHERE s.forget_at <= its_now AND s.forget_at >= since ORDER BY s.forget_at LIMIT 1;
    IF next_id IS NULL THEN
      LEAVE forgetting;
    END IF;
    SET at_id = next_id, next_id = NULL;
    SELECT s.id INTO next_id FROM coordination_sessions s WHERE s.id = at_id FOR UPDATE SKIP LOCKED;
    IF next_id IS NULL THEN
      LEAVE forgetting;
    END IF;
    DELETE FROM coordination_sessions WHERE id = next_id;
  END WHILE;
END
//
-- The newest entry before this number that one of this mode waits for: `its_before`, NULL if there is none, and what is left
-- of its lease. Those of sessions that are over are removed if the queue is locked; otherwise one of them is the answer, with
-- nothing left.
CREATE PROCEDURE coordination_standing(
  of_queue BIGINT, of_seq BIGINT, is_shared BOOLEAN, is_locked BOOLEAN,
  OUT its_blocker VARBINARY(64), OUT its_before BIGINT, OUT its_remaining BIGINT, OUT its_text LONGBLOB
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_session VARBINARY(16);
  DECLARE its_first, its_nearest BIGINT;
  DECLARE is_done BOOLEAN;
  DECLARE budget INT DEFAULT 300;
  SELECT q.first INTO its_first FROM coordination_queues q WHERE q.id = of_queue;
  standing: LOOP
    SET its_before = NULL, its_nearest = NULL;
    -- Back from this number, all would be looked at that was ever removed, where nothing is there.
    SELECT e.seq INTO its_nearest FROM coordination_entries e FORCE INDEX (PRIMARY)
      WHERE e.queue = of_queue AND e.seq >= its_first ORDER BY e.seq LIMIT 1;
    IF COALESCE(its_nearest >= of_seq, TRUE) THEN
      LEAVE standing;
    END IF;
    IF is_shared THEN
      SELECT e.id, e.seq, e.session, e.text, GREATEST(COALESCE(s.expires, 0) - {now}, 0)
        INTO its_blocker, its_before, its_session, its_text, its_remaining
        FROM coordination_entries e LEFT JOIN coordination_sessions s ON s.id = e.session
        WHERE e.queue = of_queue AND e.shared = FALSE AND e.seq >= its_first AND e.seq < of_seq ORDER BY e.seq DESC LIMIT 1;
    ELSE
      SELECT e.id, e.seq, e.session, e.text, GREATEST(COALESCE(s.expires, 0) - {now}, 0)
        INTO its_blocker, its_before, its_session, its_text, its_remaining
        FROM coordination_entries e LEFT JOIN coordination_sessions s ON s.id = e.session
        WHERE e.queue = of_queue AND e.seq >= its_first AND e.seq < of_seq ORDER BY e.seq DESC LIMIT 1;
    END IF;
    IF its_before IS NULL OR its_remaining > 0 OR NOT is_locked OR budget = 0 THEN
      LEAVE standing;
    END IF;
    SET budget = budget - 1;
    CALL coordination_end_if_expired(its_session, is_done);
    IF is_done THEN
      CALL coordination_remove(of_queue, its_before, is_done);
    END IF;
    IF NOT is_done THEN
      LEAVE standing;
    END IF;
  END LOOP;
END
//
CREATE PROCEDURE coordination_enter(
  of_session VARBINARY(16), of_generation BIGINT, of_path VARBINARY(640), of_id VARBINARY(64), is_shared BOOLEAN,
  of_text LONGBLOB
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status VARCHAR(10);
  DECLARE its_queue, its_last, its_seq, its_before, its_remaining BIGINT;
  DECLARE its_blocker VARBINARY(64);
  DECLARE its_text LONGBLOB;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  START TRANSACTION;
  CALL coordination_lock_queue(of_path, its_queue, its_last);
  CALL coordination_admit(of_session, of_generation, its_status);
  IF its_status = 'ok' THEN
    SELECT e.seq INTO its_seq FROM coordination_entries e WHERE e.id = of_id AND e.queue = its_queue;
    IF its_seq IS NULL THEN
      SET its_seq = GREATEST(its_last + 1, {now});
      UPDATE coordination_queues SET last = its_seq, changes = changes + 1 WHERE id = its_queue;
      INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
        VALUES (its_queue, its_seq, of_id, of_session, is_shared, of_generation, of_text);
    END IF;
    CALL coordination_standing(its_queue, its_seq, is_shared, TRUE, its_blocker, its_before, its_remaining, its_text);
    IF its_seq > its_last AND its_before IS NULL AND NOT is_shared THEN
      -- Where nothing is before one that waits for everything, nobody has to look there any more.
      UPDATE coordination_queues SET first = its_seq WHERE id = its_queue;
    END IF;
  END IF;
  COMMIT;
  SELECT its_status AS status, its_seq AS seq, its_blocker AS blocker, its_before AS before_seq,
    its_remaining AS remaining, its_text AS blocker_text;
END
//
CREATE PROCEDURE coordination_update(
  of_session VARBINARY(16), of_generation BIGINT, of_path VARBINARY(640), of_id VARBINARY(64), is_shared BOOLEAN,
  of_text LONGBLOB, of_seq BIGINT
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status VARCHAR(10);
  DECLARE its_queue, its_last, locked BIGINT;
  DECLARE was_shared BOOLEAN;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  START TRANSACTION;
  CALL coordination_lock_queue(of_path, its_queue, its_last);
  CALL coordination_admit(of_session, of_generation, its_status);
  IF its_status = 'ok' THEN
    SELECT e.shared INTO was_shared FROM coordination_entries e
      WHERE e.queue = its_queue AND e.seq = of_seq AND e.id = of_id AND e.session = of_session;
    SELECT e.seq INTO locked FROM coordination_entries e
      WHERE e.queue = its_queue AND e.seq = of_seq AND was_shared IS NOT NULL FOR UPDATE SKIP LOCKED;
    IF was_shared IS NULL THEN
      SET its_status = 'gone';
    ELSEIF was_shared AND NOT is_shared THEN
      SET its_status = 'exclusive';
    ELSEIF locked IS NULL THEN
      SET its_status = 'fenced';
    ELSE
      UPDATE coordination_entries FORCE INDEX (PRIMARY) SET shared = is_shared, text = of_text
        WHERE queue = its_queue AND seq = of_seq;
      UPDATE coordination_queues SET changes = changes + 1 WHERE id = its_queue;
    END IF;
  END IF;
  COMMIT;
  SELECT its_status AS status;
END
//
CREATE PROCEDURE coordination_leave(
  of_session VARBINARY(16), of_generation BIGINT, of_path VARBINARY(640), of_id VARBINARY(64), of_seq BIGINT
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status VARCHAR(10) DEFAULT 'ok';
  DECLARE its_queue, its_last, its_seq, its_generation BIGINT;
  DECLARE is_gone BOOLEAN DEFAULT TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  CALL coordination_check_writable();
  START TRANSACTION;
  CALL coordination_lock_queue(of_path, its_queue, its_last);
  IF of_session IS NOT NULL THEN
    SELECT s.generation INTO its_generation FROM coordination_sessions s WHERE s.id = of_session;
    IF of_generation < its_generation THEN
      SET its_status = 'stale';
    ELSEIF of_generation > its_generation THEN
      UPDATE coordination_sessions SET generation = of_generation WHERE id = of_session AND generation < of_generation;
      -- Another step may have been first.
      SELECT s.generation INTO its_generation FROM coordination_sessions s WHERE s.id = of_session;
      IF of_generation < its_generation THEN
        SET its_status = 'stale';
      END IF;
    END IF;
  END IF;
  IF its_status = 'ok' THEN
    SELECT e.seq INTO its_seq FROM coordination_entries e
      WHERE e.id = of_id AND e.queue = its_queue AND e.seq = COALESCE(of_seq, e.seq);
    IF its_seq IS NOT NULL THEN
      CALL coordination_remove(its_queue, its_seq, is_gone);
    END IF;
    IF NOT is_gone THEN
      SET its_status = 'fenced';
    END IF;
  END IF;
  COMMIT;
  SELECT its_status AS status;
END
//
-- Where an entry stands: nothing is locked and nothing written, unless something dead is in the way.
CREATE PROCEDURE coordination_position(
  of_session VARBINARY(16), of_path VARBINARY(640), of_id VARBINARY(64), is_shared BOOLEAN, of_seq BIGINT
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status VARCHAR(10) DEFAULT 'ok';
  DECLARE its_queue, its_last, its_before, its_remaining BIGINT;
  DECLARE its_blocker VARBINARY(64);
  DECLARE its_text LONGBLOB;
  DECLARE turn INT DEFAULT 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  CALL coordination_check_writable();
  positioning: LOOP
    SET its_queue = NULL;
    SELECT e.queue INTO its_queue FROM coordination_entries e
      JOIN coordination_queues q ON q.id = e.queue JOIN coordination_sessions s ON s.id = e.session
      WHERE e.id = of_id AND e.seq = of_seq AND q.path = of_path AND s.id = of_session AND s.expires > {now};
    IF its_queue IS NULL THEN
      SET its_status = 'gone';
      LEAVE positioning;
    END IF;
    CALL coordination_standing(its_queue, of_seq, is_shared, turn = 2, its_blocker, its_before, its_remaining, its_text);
    IF its_before IS NULL OR its_remaining > 0 OR turn = 2 THEN
      LEAVE positioning;
    END IF;
    SET turn = 2;
    START TRANSACTION;
    CALL coordination_lock_queue(of_path, its_queue, its_last);
  END LOOP;
  COMMIT;
  SELECT its_status AS status, of_seq AS seq, its_blocker AS blocker, its_before AS before_seq,
    its_remaining AS remaining, its_text AS blocker_text;
END
//
-- The queue as of one moment: a row for the queue, and one for each entry, in any order: to put texts of any length in order,
-- the server would write a file.
CREATE PROCEDURE coordination_read(of_path VARBINARY(640)) SQL SECURITY INVOKER
BEGIN
  DECLARE dead VARBINARY(16);
  DECLARE is_over BOOLEAN;
  DECLARE removed BIGINT;
  DECLARE at_seq BIGINT DEFAULT -1;
  DECLARE turn INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  CALL coordination_check_writable();
  reading: WHILE turn < 20 DO
    SET turn = turn + 1, dead = NULL;
    -- What cannot be removed now keeps nobody from the rest.
    SELECT e.session, e.seq INTO dead, at_seq FROM coordination_queues q JOIN coordination_entries e ON e.queue = q.id
      LEFT JOIN coordination_sessions s ON s.id = e.session
      WHERE q.path = of_path AND e.seq >= q.first AND e.seq > at_seq AND COALESCE(s.expires, 0) <= {now}
      ORDER BY e.seq LIMIT 1;
    IF dead IS NULL THEN
      LEAVE reading;
    END IF;
    START TRANSACTION;
    CALL coordination_end_if_expired(dead, is_over);
    IF is_over THEN
      CALL coordination_clear(dead, 100, removed);
    END IF;
    COMMIT;
  END WHILE;
  SELECT q.changes AS changes, q.version AS version, q.value AS value,
      NULL AS id, 0 AS seq, NULL AS shared, NULL AS text, NULL AS remaining
    FROM coordination_queues q WHERE q.path = of_path
  UNION ALL
  SELECT NULL, NULL, NULL, e.id, e.seq, e.shared, e.text, GREATEST(COALESCE(s.expires, 0) - {now}, 10000)
    FROM coordination_queues q JOIN coordination_entries e ON e.queue = q.id
    LEFT JOIN coordination_sessions s ON s.id = e.session WHERE q.path = of_path AND e.seq >= q.first;
END
//
-- Opens a session, and ends the one that its client had before.
CREATE PROCEDURE coordination_open(
  of_namespace VARBINARY(255), of_session VARBINARY(16), of_generation BIGINT, of_member VARBINARY(255), of_lease BIGINT,
  previous VARBINARY(16)
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status VARCHAR(10) DEFAULT 'busy';
  DECLARE found_id, its_id VARBINARY(16);
  DECLARE its_expires, removed BIGINT;
  DECLARE is_over, is_there BOOLEAN;
  DECLARE turn INT DEFAULT 0;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  CALL coordination_check_writable();
  START TRANSACTION;
  IF previous IS NOT NULL THEN
    CALL coordination_end_session(previous);
    CALL coordination_clear(previous, 100, removed);
  END IF;
  CALL coordination_sweep(TRUE);
  opening: WHILE turn < 3 DO
    SET turn = turn + 1, found_id = NULL, its_id = NULL, its_expires = NULL;
    SELECT s.id, s.expires INTO its_id, its_expires FROM coordination_sessions s WHERE s.id = of_session FOR UPDATE;
    IF its_id IS NOT NULL THEN
      IF COALESCE(its_expires, 0) > {now} THEN
        UPDATE coordination_sessions SET
            expires = {now} + of_lease, lease = of_lease, generation = GREATEST(generation, of_generation)
          WHERE id = of_session;
        SET its_status = 'ok';
      ELSE
        SET its_status = 'lost';
      END IF;
      LEAVE opening;
    END IF;
    SELECT s.id INTO found_id FROM coordination_sessions s WHERE s.namespace = of_namespace AND s.`member` = of_member;
    IF found_id IS NOT NULL THEN
      CALL coordination_end_if_expired(found_id, is_over);
      IF NOT is_over THEN
        -- Somebody else may be ending it.
        SELECT COUNT(*) INTO is_there FROM coordination_sessions s WHERE s.id = found_id AND s.expires > {now};
        IF is_there THEN
          SET its_status = 'taken';
        END IF;
        LEAVE opening;
      END IF;
    END IF;
    INSERT IGNORE INTO coordination_sessions (id, namespace, `member`, lease, expires, generation)
      VALUES (of_session, of_namespace, of_member, of_lease, {now} + of_lease, of_generation);
    IF ROW_COUNT() = 1 THEN
      SET its_status = 'ok';
      LEAVE opening;
    END IF;
  END WHILE;
  COMMIT;
  SELECT its_status AS status;
END
//
-- Extends the lease; which of these entries are gone, whose names are all of this length and stand one after another.
CREATE PROCEDURE coordination_renew(
  of_session VARBINARY(16), of_generation BIGINT, held LONGBLOB, width BIGINT
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status VARCHAR(10);
  DECLARE its_expires, its_generation BIGINT;
  DECLARE its_gone LONGBLOB DEFAULT '';
  DECLARE its_id VARBINARY(64);
  DECLARE place BIGINT DEFAULT 1;
  DECLARE is_there BOOLEAN;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  START TRANSACTION;
  CALL coordination_admit(of_session, of_generation, its_status);
  IF its_status = 'ok' THEN
    UPDATE coordination_sessions SET expires = {now} + lease WHERE id = of_session;
    WHILE place < LENGTH(held) DO
      SET its_id = SUBSTRING(held, place, width);
      SELECT COUNT(*) INTO is_there FROM coordination_entries e WHERE e.id = its_id AND e.session = of_session;
      IF NOT is_there THEN
        SET its_gone = CONCAT(its_gone, its_id);
      END IF;
      SET place = place + width;
    END WHILE;
  END IF;
  -- Before anything else is locked.
  COMMIT;
  IF its_status = 'ok' THEN
    START TRANSACTION;
    CALL coordination_sweep(FALSE);
    COMMIT;
  END IF;
  SELECT its_status AS status, its_gone AS gone;
END
//
-- A page of the entries of a session that were entered on older connections, after this one.
CREATE PROCEDURE coordination_settle(of_session VARBINARY(16), of_generation BIGINT, at_queue BIGINT, at_seq BIGINT, most BIGINT)
SQL SECURITY INVOKER
  SELECT e.queue AS queue, e.seq AS seq, e.id AS id, q.path AS path
    FROM coordination_entries e JOIN coordination_queues q ON q.id = e.queue
    WHERE e.session = of_session AND e.generation < of_generation
      AND e.queue >= at_queue AND (e.queue > at_queue OR e.seq > at_seq)
    ORDER BY e.queue, e.seq LIMIT most
//
-- Removes one of these; 'locked': somebody keeps it from that now.
CREATE PROCEDURE coordination_settle_one(of_session VARBINARY(16), of_generation BIGINT, of_queue BIGINT, of_seq BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE locked, its_seq BIGINT;
  DECLARE is_gone BOOLEAN DEFAULT FALSE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  START TRANSACTION;
  -- Heartbeats are sent on the same connection, and wait for nobody who has the queue.
  SELECT q.id INTO locked FROM coordination_queues q WHERE q.id = of_queue FOR UPDATE SKIP LOCKED;
  IF locked IS NOT NULL THEN
    SELECT e.seq INTO its_seq FROM coordination_entries e
      WHERE e.queue = of_queue AND e.seq = of_seq AND e.session = of_session AND e.generation < of_generation;
    SET is_gone = TRUE;
    IF its_seq IS NOT NULL THEN
      CALL coordination_remove(of_queue, its_seq, is_gone);
    END IF;
  END IF;
  COMMIT;
  SELECT IF(is_gone, 'ok', 'locked') AS status;
END
//
-- Ends a session, and removes what it owns; 'more': not all of it yet, 'locked': somebody keeps the rest from it now. One that
-- is not there may be about to come, by a call that was given up.
CREATE PROCEDURE coordination_close(of_namespace VARBINARY(255), of_session VARBINARY(16)) SQL SECURITY INVOKER
BEGIN
  DECLARE its_id VARBINARY(16);
  DECLARE removed BIGINT;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  CALL coordination_check_writable();
  START TRANSACTION;
  SELECT s.id INTO its_id FROM coordination_sessions s WHERE s.id = of_session FOR UPDATE;
  IF its_id IS NULL THEN
    INSERT INTO coordination_sessions (id, namespace, lease, expires, generation)
      VALUES (of_session, of_namespace, 0, 0, 0) ON DUPLICATE KEY UPDATE `member` = `member`;
  END IF;
  CALL coordination_end_session(of_session);
  CALL coordination_clear(of_session, 300, removed);
  COMMIT;
  SELECT IF(COUNT(*) = 0, 'ok', IF(removed > 0, 'more', 'locked')) AS status
    FROM coordination_sessions s WHERE s.id = of_session AND s.expires IS NOT NULL;
END
//
-- Writes a value, or removes it where `of_text` is NULL, if its version is the one expected. Of the records beside it, `names`
-- has the names with commas between them, `lengths` how long each is with commas between them, `-` for one that is removed,
-- and `datas` what they hold, one after another.
CREATE PROCEDURE coordination_write(
  of_session VARBINARY(16), of_generation BIGINT, of_path VARBINARY(640), expected BIGINT, of_text LONGBLOB,
  if_empty BOOLEAN, of_id BIGINT, names LONGBLOB, lengths LONGBLOB, datas LONGBLOB, many BIGINT
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status VARCHAR(10);
  DECLARE its_queue, its_last, its_version, its_before, its_remaining, its_now BIGINT;
  DECLARE its_value, its_text, its_data LONGBLOB;
  DECLARE its_blocker VARBINARY(64);
  DECLARE its_name, its_length VARBINARY(255);
  DECLARE is_there BOOLEAN;
  DECLARE nth INT DEFAULT 1;
  DECLARE place BIGINT DEFAULT 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  START TRANSACTION;
  CALL coordination_lock_queue(of_path, its_queue, its_last);
  CALL coordination_admit(of_session, of_generation, its_status);
  writing: BEGIN
    IF its_status <> 'ok' THEN
      LEAVE writing;
    END IF;
    SET its_status = 'other';
    SELECT q.version, q.value INTO its_version, its_value FROM coordination_queues q WHERE q.id = its_queue;
    IF NOT (its_version <=> expected) THEN
      LEAVE writing;
    END IF;
    IF if_empty THEN
      CALL coordination_standing(its_queue, its_last + 1, FALSE, TRUE, its_blocker, its_before, its_remaining, its_text);
      IF its_before IS NOT NULL THEN
        LEAVE writing;
      END IF;
    END IF;
    SET its_now = {now};
    IF expected IS NULL THEN
      SELECT COUNT(*) INTO is_there FROM coordination_created c WHERE c.queue = its_queue AND c.id = of_id;
      IF is_there THEN
        LEAVE writing;
      END IF;
      INSERT INTO coordination_created (queue, id, at) VALUES (its_queue, of_id, its_now);
      -- Those of this queue, which is locked: nobody else removes them.
      DELETE FROM coordination_created WHERE queue = its_queue AND at < its_now - 60000000 LIMIT 10;
    END IF;
    IF of_text IS NULL THEN
      SET its_version = COALESCE(expected, 0);
      UPDATE coordination_queues SET version = NULL, value = NULL, changes = changes + 1 WHERE id = its_queue;
    ELSE
      SET its_version = GREATEST(its_last + 1, its_now);
      UPDATE coordination_queues SET last = its_version, version = its_version, value = of_text, changes = changes + 1
        WHERE id = its_queue;
    END IF;
    WHILE nth <= many DO
      SET its_name = SUBSTRING_INDEX(SUBSTRING_INDEX(names, ',', nth), ',', -1);
      SET its_length = SUBSTRING_INDEX(SUBSTRING_INDEX(lengths, ',', nth), ',', -1);
      IF its_length = '-' THEN
        DELETE FROM coordination_records WHERE queue = its_queue AND name = its_name;
      ELSE
        SET its_data = SUBSTRING(datas, place, CAST(its_length AS SIGNED));
        INSERT INTO coordination_records (queue, name, data) VALUES (its_queue, its_name, its_data)
          ON DUPLICATE KEY UPDATE data = VALUES(data);
        SET place = place + LENGTH(its_data);
      END IF;
      SET nth = nth + 1;
    END WHILE;
    SET its_status = 'ok', its_value = NULL;
  END writing;
  COMMIT;
  SELECT its_status AS status, its_version AS version, its_value AS value;
END
//
-- The records of these names, between which there are commas.
CREATE PROCEDURE coordination_records_of(of_path VARBINARY(640), names LONGBLOB) SQL SECURITY INVOKER
  SELECT r.name AS name, r.data AS data FROM coordination_queues q JOIN coordination_records r ON r.queue = q.id
    WHERE q.path = of_path AND FIND_IN_SET(r.name, names)
//
-- A page of the paths between these: with the text of an entry that lives, and with the value.
CREATE PROCEDURE coordination_list(after VARBINARY(1024), upto VARBINARY(1024), most BIGINT) SQL SECURITY INVOKER
  SELECT q.path AS path, (
      SELECT STRAIGHT_JOIN e.text FROM coordination_entries e JOIN coordination_sessions s ON s.id = e.session
        WHERE e.queue = q.id AND e.seq >= q.first AND s.expires > {now} ORDER BY e.seq LIMIT 1
    ) AS entry, q.value AS value
    FROM coordination_queues q FORCE INDEX (path) WHERE q.path > after AND q.path < upto ORDER BY q.path LIMIT most
//
-- Removes queues of a page that have nothing and in which nothing was entered or written for so long; how far the page went
-- (NULL: to the end), and how many are removed.
CREATE PROCEDURE coordination_prune(
  of_namespace VARBINARY(255), unused BIGINT, after VARBINARY(1024), upto VARBINARY(1024), most BIGINT
) SQL SECURITY INVOKER
BEGIN
  DECLARE at_path VARBINARY(1024);
  DECLARE next_path VARBINARY(640);
  DECLARE its_now, its_queue, its_last BIGINT;
  DECLARE removed, seen BIGINT DEFAULT 0;
  DECLARE is_used BOOLEAN;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  SET its_now = {now}, at_path = after;
  START TRANSACTION;
  -- Two who prune would be in each other's way.
  INSERT INTO coordination_floors (namespace, last) VALUES (of_namespace, 0) ON DUPLICATE KEY UPDATE last = last + 0;
  pruning: WHILE seen < most DO
    SET next_path = NULL, its_queue = NULL;
    SELECT q.path INTO next_path FROM coordination_queues q
      WHERE q.path > at_path AND q.path < upto ORDER BY q.path LIMIT 1;
    IF next_path IS NULL THEN
      LEAVE pruning;
    END IF;
    SET seen = seen + 1, at_path = next_path;
    SELECT q.id INTO its_queue FROM coordination_queues q
      WHERE q.path = at_path AND q.value IS NULL AND q.last <= its_now - unused;
    IF its_queue IS NOT NULL THEN
      SET its_last = NULL;
      -- By its path, as all do who lock it and wait.
      SELECT q.last INTO its_last FROM coordination_queues q
        WHERE q.path = at_path AND q.value IS NULL FOR UPDATE SKIP LOCKED;
      SELECT EXISTS (SELECT 1 FROM coordination_entries e WHERE e.queue = its_queue)
          OR EXISTS (SELECT 1 FROM coordination_records r WHERE r.queue = its_queue)
          OR EXISTS (SELECT 1 FROM coordination_created c WHERE c.queue = its_queue AND c.at >= its_now - 60000000)
        INTO is_used;
      IF its_last <= its_now - unused AND NOT is_used THEN
        UPDATE coordination_floors SET last = GREATEST(last, its_last) WHERE namespace = of_namespace;
        DELETE FROM coordination_created WHERE queue = its_queue;
        DELETE FROM coordination_queues WHERE id = its_queue;
        SET removed = removed + 1;
      END IF;
    END IF;
  END WHILE;
  COMMIT;
  SELECT IF(seen < most, NULL, at_path) AS upto, removed AS removed;
END
//
-- The name as all stores encode it.
CREATE PROCEDURE coordination_encode(of_name LONGBLOB, OUT encoded VARBINARY(255)) SQL SECURITY INVOKER
BEGIN
  DECLARE so_far LONGBLOB DEFAULT '';
  DECLARE hashed VARBINARY(40);
  DECLARE place, bits, held INT DEFAULT 0;
  DECLARE one VARBINARY(1);
  WHILE place < LENGTH(of_name) DO
    SET place = place + 1, one = SUBSTRING(of_name, place, 1);
    SET so_far = CONCAT(so_far, CASE
      WHEN ORD(one) BETWEEN 48 AND 57 OR ORD(one) BETWEEN 65 AND 90 OR ORD(one) BETWEEN 97 AND 122 OR ORD(one) IN (45, 95)
      THEN one ELSE CONCAT('%', HEX(one)) END);
  END WHILE;
  IF LENGTH(so_far) > 200 THEN
    SET hashed = CONCAT(UNHEX(SHA2(of_name, 256)), X'00'), so_far = 'h~', place = 1;
    WHILE LENGTH(so_far) < 54 DO
      IF bits < 5 THEN
        SET held = held * 256 + ORD(SUBSTRING(hashed, place, 1)), bits = bits + 8, place = place + 1;
      END IF;
      SET bits = bits - 5;
      SET so_far = CONCAT(so_far, SUBSTRING('abcdefghijklmnopqrstuvwxyz234567', (held >> bits) + 1, 1));
      SET held = held & ((1 << bits) - 1);
    END WHILE;
  END IF;
  SET encoded = so_far;
END
//
-- For a transaction of the holder's own, as its first statement: fails unless the token is that of a holder, whose lock then
-- stays where it is until the transaction is over.
--
-- It locks the entry's row. Whoever would remove that, be it because the session is over, leaves it in its place as long as
-- it is locked, and waits behind it. In a transaction that is SERIALIZABLE, InnoDB would lock all rows that are looked at, and
-- with that of the session keep its heartbeats out.
CREATE PROCEDURE coordination_fence_in(
  of_namespace LONGTEXT CHARACTER SET utf8mb4, of_kind VARCHAR(64) CHARACTER SET utf8mb4,
  of_name LONGTEXT CHARACTER SET utf8mb4, token BIGINT
) SQL SECURITY DEFINER
BEGIN
  DECLARE namespace_part, name_part VARBINARY(255);
  DECLARE its_queue, its_first, its_seq BIGINT;
  DECLARE its_session VARBINARY(16);
  DECLARE is_shared, is_refused BOOLEAN;
  -- Each kind of server knows its own name of it only.
  IF /*M! @@session.tx_isolation */ /*!80000 @@session.transaction_isolation */ = 'SERIALIZABLE' THEN
    SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 30001,
      MESSAGE_TEXT = 'a transaction that is SERIALIZABLE would lock the rows of the holder''s session';
  END IF;
  CALL coordination_encode(of_namespace, namespace_part);
  CALL coordination_encode(of_name, name_part);
  SELECT q.id, q.first INTO its_queue, its_first FROM coordination_queues q
    WHERE q.path = CONCAT(namespace_part, '/', CAST(of_kind AS BINARY), '/', name_part);
  SELECT e.seq, e.shared, e.session INTO its_seq, is_shared, its_session
    FROM coordination_entries e WHERE e.queue = its_queue AND e.seq = token;
  SELECT its_seq IS NULL OR EXISTS (
      SELECT 1 FROM coordination_entries e FORCE INDEX (PRIMARY)
        WHERE e.queue = its_queue AND e.seq >= its_first AND e.seq < its_seq AND NOT (e.shared AND is_shared)
    ) OR NOT EXISTS (
      SELECT 1 FROM coordination_sessions s WHERE s.id = its_session AND s.expires > {now}
    ) INTO is_refused;
  -- Of a row that is not there, what is around it would be locked, and others' rows kept out. From here on the row alone
  -- decides: it comes after none that it did not come after before.
  IF NOT is_refused THEN
    SET its_seq = NULL;
    SELECT e.seq INTO its_seq
      FROM coordination_entries e WHERE e.queue = its_queue AND e.seq = token LOCK IN SHARE MODE;
  END IF;
  IF is_refused OR its_seq IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 30001, MESSAGE_TEXT = 'the token is not that of a holder of the lock';
  END IF;
END
//
CREATE PROCEDURE coordination_fence(of_name LONGTEXT CHARACTER SET utf8mb4, token BIGINT) SQL SECURITY DEFINER
  CALL coordination_fence_in('{namespace}', 'lock', of_name, token)
