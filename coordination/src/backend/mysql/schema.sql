-- The tables and procedures in the database. The first client that finds no version there creates them, under a lock. A line of
-- two slashes separates two statements. `{now}` is the time by the server's clock; `{namespace}` is the namespace that is used
-- if none is named.
--
--   queues     the queues; path: `<namespace>/<kind>/<name>`, in the encoding that all stores use; last: the newest number
--              that was given in the queue; first: no entry of the queue has a smaller number than this, and so the queue is
--              empty if this is larger than `last`;
--              changes: another number after each change, so that clients notice the change;
--              version, value: the queue's value and its version, NULL if it has none
--   entries    the entries of all queues; seq: the entry's number; generation: the number of the connection on which the
--              entry was entered
--   sessions   expires: when the lease ends; 0: the session is over, but may have entries left; NULL: it is over and has
--              none left; forget_at: when the row of an ended session may be removed; generation: the highest number of a
--              connection on which a call of the session came
--   records    the records beside the values of queues
--   created    the writes that created a value; as long as a write is here, it has no effect if it arrives once more
--   floors     for each namespace, the newest number that was given in a queue whose row is removed
--
-- Times are in microseconds by the server's clock. Texts are stored as bytes, so that no collation, character set or time zone
-- matters.
--
-- Invariants:
--
-- * Whoever adds, changes or removes an entry has locked the row of its queue. So the step that adds an entry sees all earlier
--   entries.
-- * A session is over when its row says so, and not as soon as its time has passed. A step that finds that the time has
--   passed locks the row and writes into it that the session is over, before it removes an entry of the session. A heartbeat
--   that comes at the same time either has locked the row before and extends the lease, or finds that the session is over.
-- * A step waits for at most two locks, in this order: that of a queue, and then that of its own session. It takes any other
--   lock only if that is free; otherwise it leaves undone what it needs the lock for, and later steps do that. InnoDB also
--   locks rows by itself, also those that others have locked, so two steps may still wait for each other. Then the server
--   rolls one of them back as a whole, and the client sends it again.
-- * No statement in a loop contains a variable whose value may be long: if the server logs statements, it writes the value of
--   each variable in each statement into the log.
-- * Each step begins with a ROLLBACK. If the step before it on the connection was killed, its error handler has not run, and
--   its transaction may still be open. START TRANSACTION would commit that transaction.
-- * Rows that are only read are read by a SELECT. In other statements that read rows, also in IF and SET, InnoDB locks the rows.
-- * As long as any client's transaction is open, rows that were removed after it began stay in each index. So where rows are
--   often added and removed, a statement reads a bounded part of an index, and names that index.

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
-- Fails if the user lacks a right on a table that the steps need. It changes nothing, because no row satisfies FALSE.
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
-- Fails if the server is read-only. Some users may write to a read-only server all the same, so each step that may write checks
-- this. If another server has taken over, it would not know what is granted or released here; and if this server replicates from
-- that one by now, rows that are removed here could not be removed by the replication, which would end.
CREATE PROCEDURE coordination_check_writable() SQL SECURITY INVOKER
BEGIN
  IF CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') THEN
    SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1290, MESSAGE_TEXT = 'the server is read-only: another may have taken over';
  END IF;
END
//
-- Locks the row of a queue, and returns its id and its newest number. Creates the row if it does not exist.
CREATE PROCEDURE coordination_lock_queue(of_path VARBINARY(640), OUT its_id BIGINT, OUT its_last BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE its_floor BIGINT DEFAULT 0;
  SELECT q.id, q.last INTO its_id, its_last FROM coordination_queues q WHERE q.path = of_path FOR UPDATE;
  IF its_id IS NULL THEN
    SELECT f.last INTO its_floor FROM coordination_floors f WHERE f.namespace = SUBSTRING_INDEX(of_path, '/', 1);
    -- If two steps insert the row at the same time, the second one updates it, and so gets the exclusive lock. A plain INSERT
    -- that fails would get a shared lock, which two steps can have at the same time.
    INSERT INTO coordination_queues (path, last, changes) VALUES (of_path, its_floor, {now})
      ON DUPLICATE KEY UPDATE changes = changes + 1;
    SELECT q.id, q.last INTO its_id, its_last FROM coordination_queues q WHERE q.path = of_path FOR UPDATE;
    -- Between the first reading of `floors` and this lock, other clients may have created, used and pruned the queue. So
    -- `floors` is read once more, under the lock.
    SELECT f.last INTO its_floor FROM coordination_floors f WHERE f.namespace = SUBSTRING_INDEX(of_path, '/', 1);
    IF its_floor > its_last THEN
      -- Written down, as not every step that makes a queue gives a number in it.
      UPDATE coordination_queues SET last = its_floor WHERE id = its_id;
      SET its_last = its_floor;
    END IF;
  END IF;
END
//
-- Checks whether a step of this session is allowed: 'ok', or why it is refused ('lost' or 'stale'). Locks the session's row, so
-- that the session cannot end before the step has ended. The session's heartbeats wait for that lock. So a step that writes
-- anything else calls this last, when it waits for nothing but its commit, and rolls back what it has written unless this is 'ok'.
--
-- If a client has given up a call together with its connection, the call may be carried out late. So a call is refused if an
-- earlier call of its session came on a newer connection, that is with a higher generation.
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
-- Marks a session as over. From then on it counts as ended, even if it still has entries.
CREATE PROCEDURE coordination_end_session(of_session VARBINARY(16)) SQL SECURITY INVOKER
  UPDATE coordination_sessions SET expires = 0, `member` = NULL WHERE id = of_session AND expires > 0
//
-- If the lease of a session would last for longer than the session has asked for, the server's clock was set back after the last
-- heartbeat. Then the lease begins anew, as with a heartbeat that comes just now, unless another step has locked the row. Only for use
-- within a transaction: the clock is read again under the row's lock, so that no heartbeat that came meanwhile is undone.
CREATE PROCEDURE coordination_shorten(of_session VARBINARY(16)) SQL SECURITY INVOKER
BEGIN
  DECLARE its_id VARBINARY(16);
  SELECT s.id INTO its_id FROM coordination_sessions s
    WHERE s.id = of_session AND s.expires > {now} + s.lease FOR UPDATE SKIP LOCKED;
  IF its_id IS NOT NULL THEN
    UPDATE coordination_sessions SET expires = {now} + lease WHERE id = its_id;
  END IF;
END
//
-- Has all leases in a queue begin anew that last too long: if each of many dead clients stood in the way before its lease began anew, the
-- last one would be gone only after as many leases. Called when the step's own transaction has ended: the step may have waited for the
-- row of its own session, and must not have those of others locked meanwhile. This transaction waits for nothing.
CREATE PROCEDURE coordination_shorten_all(of_queue BIGINT) SQL SECURITY INVOKER
BEGIN
  DECLARE its_session VARBINARY(16);
  DECLARE at_seq BIGINT DEFAULT -1;
  DECLARE turn INT DEFAULT 0;
  -- What the step was called for is done. So the client must not be told an error that has nothing to do with it.
  DECLARE EXIT HANDLER FOR SQLEXCEPTION ROLLBACK;
  START TRANSACTION;
  shortening: WHILE turn < 200 DO
    SET turn = turn + 1, its_session = NULL;
    SELECT e.session, e.seq INTO its_session, at_seq
      FROM coordination_entries e FORCE INDEX (PRIMARY) JOIN coordination_sessions s ON s.id = e.session
      WHERE e.queue = of_queue AND e.seq > at_seq AND s.expires > {now} + s.lease ORDER BY e.seq LIMIT 1;
    IF its_session IS NULL THEN
      LEAVE shortening;
    END IF;
    CALL coordination_shorten(its_session);
  END WHILE;
  COMMIT;
END
//
-- Ends a session if its time has passed. FALSE: it is alive, or another step has locked its row, and so may be extending or
-- ending it.
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
      CALL coordination_shorten(of_session);
    ELSE
      CALL coordination_end_session(of_session);
    END IF;
  END IF;
END
//
-- Removes an entry of a queue whose row is locked. FALSE: the entry stays, because its holder's own transaction has locked the
-- entry's row, see `coordination_fence`.
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
-- Removes entries of a session that is over: at most `most` of them, and only those whose rows are not locked. Returns how many
-- were removed. If no entry is left, marks the session as empty.
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
    -- Without SKIP LOCKED, two steps could wait for each other, if each has removed the last entries of the other's session.
    SELECT s.id INTO its_id FROM coordination_sessions s
      WHERE s.id = of_session AND s.expires IS NOT NULL FOR UPDATE SKIP LOCKED;
    IF its_id IS NOT NULL THEN
      UPDATE coordination_sessions SET expires = NULL, forget_at = {now} + 60000000 WHERE id = of_session;
    END IF;
  END IF;
END
//
-- Ends sessions whose time has passed, and removes their entries: only as many as a heartbeat has time for.
--
-- As long as any client's transaction is open, each heartbeat leaves an item in the index on `expires` that cannot be removed.
-- So usually only sessions that ended within the last 30 seconds are looked for. If other clients go on sending heartbeats,
-- these find each session in that time. Only one call in a hundred looks further back. The order is: first sessions that are
-- marked as over (`expires` is 0), beginning at a random one, because the first ones may be locked; then sessions that an
-- operator has ended by hand (1); then sessions whose time has passed.
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
      -- `CONCAT(s.id)` keeps the server from using the id as a range of the index, in which it would read rows with other times
      -- too.
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
    -- If another step has locked the session's row, it removes the session's entries just now. So this step leaves them out.
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
-- Finds the newest entry with a smaller number that blocks an entry of this mode: `its_before` is its number, NULL if there is
-- none, and `its_remaining` is for how long its lease still lasts. If the queue is locked, entries of sessions that are over
-- are removed on the way. If it is not, such an entry may be returned, with an `its_remaining` of 0; also one whose lease lasts too
-- long. `is_too_long`: the lease lasts too long, so the caller calls `coordination_shorten_all` when its transaction has ended.
CREATE PROCEDURE coordination_standing(
  of_queue BIGINT, of_seq BIGINT, is_shared BOOLEAN, is_locked BOOLEAN,
  OUT its_blocker VARBINARY(64), OUT its_before BIGINT, OUT its_remaining BIGINT, OUT its_text LONGBLOB,
  OUT is_too_long BOOLEAN
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_session VARBINARY(16);
  DECLARE its_first, its_nearest, its_lease BIGINT;
  DECLARE is_done BOOLEAN;
  DECLARE budget INT DEFAULT 300;
  SELECT q.first INTO its_first FROM coordination_queues q WHERE q.id = of_queue;
  standing: LOOP
    SET its_before = NULL, its_nearest = NULL, is_too_long = FALSE;
    -- First finds out whether there is any entry with a smaller number, by reading forward from `first`. If there is none,
    -- reading back from `of_seq` could pass all removed entries that are still in the index.
    SELECT e.seq INTO its_nearest FROM coordination_entries e FORCE INDEX (PRIMARY)
      WHERE e.queue = of_queue AND e.seq >= its_first ORDER BY e.seq LIMIT 1;
    IF COALESCE(its_nearest >= of_seq, TRUE) THEN
      LEAVE standing;
    END IF;
    IF is_shared THEN
      SELECT e.id, e.seq, e.session, e.text, GREATEST(COALESCE(s.expires, 0) - {now}, 0), COALESCE(s.lease, 0)
        INTO its_blocker, its_before, its_session, its_text, its_remaining, its_lease
        FROM coordination_entries e LEFT JOIN coordination_sessions s ON s.id = e.session
        WHERE e.queue = of_queue AND e.shared = FALSE AND e.seq >= its_first AND e.seq < of_seq ORDER BY e.seq DESC LIMIT 1;
    ELSE
      SELECT e.id, e.seq, e.session, e.text, GREATEST(COALESCE(s.expires, 0) - {now}, 0), COALESCE(s.lease, 0)
        INTO its_blocker, its_before, its_session, its_text, its_remaining, its_lease
        FROM coordination_entries e LEFT JOIN coordination_sessions s ON s.id = e.session
        WHERE e.queue = of_queue AND e.seq >= its_first AND e.seq < of_seq ORDER BY e.seq DESC LIMIT 1;
    END IF;
    IF its_before IS NOT NULL AND its_remaining > its_lease THEN
      SET is_too_long = TRUE, its_remaining = IF(is_locked, its_lease, 0);
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
-- Adds an entry to a queue, and says which entry blocks it. An entry with this id that is there already keeps its number.
--
-- `enter` and `leave` have a short way each, for a lock that nobody else wants, with fewer statements: each statement within a
-- procedure costs 6 to 7 us or more, however little it does, and so does each CALL. A queue whose `first` is larger than its
-- `last` has no entry: so no entry was entered before under this id, and nothing blocks the new one. `leave` leaves queues like
-- this if the entry was the only one. Where the short way ends, it has changed the same as the long one would have.
CREATE PROCEDURE coordination_enter(
  of_session VARBINARY(16), of_generation BIGINT, of_path VARBINARY(640), of_id VARBINARY(64), is_shared BOOLEAN,
  of_text LONGBLOB
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status VARCHAR(10);
  DECLARE its_queue, its_last, its_first, its_seq, next_seq, its_before, its_remaining, its_expires, its_generation BIGINT;
  DECLARE its_blocker VARBINARY(64);
  DECLARE its_text LONGBLOB;
  DECLARE is_too_long BOOLEAN;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  START TRANSACTION;
  SELECT q.id, q.last, q.first, GREATEST(q.last + 1, {now}) INTO its_queue, its_last, its_first, next_seq
    FROM coordination_queues q WHERE q.path = of_path FOR UPDATE;
  IF its_first > its_last THEN
    -- The short way.
    SET its_seq = next_seq;
    INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
      VALUES (its_queue, its_seq, of_id, of_session, is_shared, of_generation, of_text);
    UPDATE coordination_queues SET last = its_seq, changes = changes + 1, first = its_seq WHERE id = its_queue;
  ELSE
    IF its_queue IS NULL THEN
      CALL coordination_lock_queue(of_path, its_queue, its_last);
    END IF;
    SELECT e.seq INTO its_seq FROM coordination_entries e WHERE e.id = of_id AND e.queue = its_queue;
    IF its_seq IS NULL THEN
      SET its_seq = GREATEST(its_last + 1, {now});
      INSERT INTO coordination_entries (queue, seq, id, session, shared, generation, text)
        VALUES (its_queue, its_seq, of_id, of_session, is_shared, of_generation, of_text);
    END IF;
    CALL coordination_standing(
      its_queue, its_seq, is_shared, TRUE, its_blocker, its_before, its_remaining, its_text, is_too_long);
    IF its_seq > its_last THEN
      -- If this entry is exclusive and nothing is before it, there is nothing with a smaller number than its own. `first` says
      -- so to later steps, so that they do not look there.
      UPDATE coordination_queues SET last = its_seq, changes = changes + 1,
          first = IF(its_before IS NULL AND NOT is_shared, its_seq, first)
        WHERE id = its_queue;
    END IF;
  END IF;
  -- What `coordination_admit` does, which is called if anything is not as usual.
  SELECT s.expires, s.generation INTO its_expires, its_generation
    FROM coordination_sessions s WHERE s.id = of_session FOR UPDATE;
  IF its_expires > {now} AND its_generation = of_generation AND CAST(@@global.read_only AS CHAR) IN ('0', 'OFF') THEN
    SET its_status = 'ok';
  ELSE
    CALL coordination_admit(of_session, of_generation, its_status);
    IF its_status <> 'ok' THEN
      ROLLBACK;
    END IF;
  END IF;
  COMMIT;
  IF is_too_long THEN
    CALL coordination_shorten_all(its_queue);
  END IF;
  SELECT its_status AS status, its_seq AS seq, its_blocker AS blocker, its_before AS before_seq,
    its_remaining AS remaining, its_text AS blocker_text;
END
//
CREATE PROCEDURE coordination_update(
  of_session VARBINARY(16), of_generation BIGINT, of_path VARBINARY(640), of_id VARBINARY(64), is_shared BOOLEAN,
  of_text LONGBLOB, of_seq BIGINT
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status, admitted VARCHAR(10);
  DECLARE its_queue, its_last, locked BIGINT;
  DECLARE was_shared BOOLEAN;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  START TRANSACTION;
  CALL coordination_lock_queue(of_path, its_queue, its_last);
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
    SET its_status = 'ok';
  END IF;
  CALL coordination_admit(of_session, of_generation, admitted);
  IF admitted <> 'ok' THEN
    ROLLBACK;
    SET its_status = admitted;
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
  DECLARE its_queue, its_last, its_first, its_seq, its_generation BIGINT;
  DECLARE is_gone BOOLEAN DEFAULT TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  IF CAST(@@global.read_only AS CHAR) NOT IN ('0', 'OFF') THEN
    CALL coordination_check_writable();
  END IF;
  START TRANSACTION;
  SELECT q.id, q.last, q.first INTO its_queue, its_last, its_first
    FROM coordination_queues q WHERE q.path = of_path FOR UPDATE;
  IF its_queue IS NULL THEN
    CALL coordination_lock_queue(of_path, its_queue, its_last);
  END IF;
  IF of_session IS NOT NULL THEN
    SELECT s.generation INTO its_generation FROM coordination_sessions s WHERE s.id = of_session;
    IF of_generation < its_generation THEN
      SET its_status = 'stale';
    ELSEIF of_generation > its_generation THEN
      UPDATE coordination_sessions SET generation = of_generation WHERE id = of_session AND generation < of_generation;
      -- Another step may have raised the generation at the same time.
      SELECT s.generation INTO its_generation FROM coordination_sessions s WHERE s.id = of_session;
      IF of_generation < its_generation THEN
        SET its_status = 'stale';
      END IF;
    END IF;
  END IF;
  IF its_status = 'ok' AND its_first = of_seq AND its_last = of_seq THEN
    -- The short way, for the only entry of a queue: nothing has a smaller number, and nothing a larger one.
    SELECT e.seq INTO its_seq FROM coordination_entries e FORCE INDEX (PRIMARY)
      WHERE e.queue = its_queue AND e.seq = of_seq AND e.id = of_id FOR UPDATE SKIP LOCKED;
    IF its_seq IS NOT NULL THEN
      DELETE e FROM coordination_entries e FORCE INDEX (PRIMARY) WHERE e.queue = its_queue AND e.seq = of_seq;
      UPDATE coordination_queues SET changes = changes + 1, first = last + 1 WHERE id = its_queue;
    END IF;
  END IF;
  IF its_status = 'ok' AND its_seq IS NULL THEN
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
-- Says which entry blocks an entry now. Locks and writes nothing, unless an entry whose session is over has to be removed, or a lease
-- to be shortened.
CREATE PROCEDURE coordination_position(
  of_session VARBINARY(16), of_path VARBINARY(640), of_id VARBINARY(64), is_shared BOOLEAN, of_seq BIGINT
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status VARCHAR(10) DEFAULT 'ok';
  DECLARE its_queue, its_last, its_before, its_remaining BIGINT;
  DECLARE its_blocker VARBINARY(64);
  DECLARE its_text LONGBLOB;
  DECLARE is_too_long BOOLEAN;
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
    CALL coordination_standing(
      its_queue, of_seq, is_shared, turn = 2, its_blocker, its_before, its_remaining, its_text, is_too_long);
    IF its_before IS NULL OR its_remaining > 0 OR turn = 2 THEN
      LEAVE positioning;
    END IF;
    SET turn = 2;
    START TRANSACTION;
    CALL coordination_lock_queue(of_path, its_queue, its_last);
  END LOOP;
  COMMIT;
  IF is_too_long THEN
    CALL coordination_shorten_all(its_queue);
  END IF;
  SELECT its_status AS status, of_seq AS seq, its_blocker AS blocker, its_before AS before_seq,
    its_remaining AS remaining, its_text AS blocker_text;
END
//
-- Reads a queue as of one moment: a row for the queue and a row for each entry, in any order. They are not sorted, because the
-- server would write a file to sort rows that may be long. Before that, removes entries whose sessions are over, and
-- shortens leases that last too long.
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
    -- Each turn looks behind the entry of the turn before. So an entry that cannot be removed now does not keep the others from
    -- being removed.
    SELECT e.session, e.seq INTO dead, at_seq FROM coordination_queues q JOIN coordination_entries e ON e.queue = q.id
      LEFT JOIN coordination_sessions s ON s.id = e.session
      WHERE q.path = of_path AND e.seq >= q.first AND e.seq > at_seq
        -- A second more, as a heartbeat may have come since this statement began.
        AND (COALESCE(s.expires, 0) <= {now} OR s.expires > {now} + s.lease + 1000000)
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
-- Opens a session, and ends the session that the client had before (`previous`), if there was one.
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
        -- Another step may be ending that session just now. Then the answer is 'busy', and the client tries again.
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
-- Extends the lease, and returns the ids of those of the `held` entries that are gone. In `held` and in the answer, the ids
-- stand one after the other, each `width` bytes long.
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
  -- Commits before `coordination_sweep` locks rows of other sessions, so that its own session's row is not locked meanwhile.
  COMMIT;
  IF its_status = 'ok' THEN
    sweeping: BEGIN
      -- The lease is extended. So the client must not be told an error that has nothing to do with its session.
      DECLARE EXIT HANDLER FOR SQLEXCEPTION ROLLBACK;
      START TRANSACTION;
      CALL coordination_sweep(FALSE);
      COMMIT;
    END sweeping;
  END IF;
  SELECT its_status AS status, its_gone AS gone;
END
//
-- A page of the entries of a session that were entered on older connections. The page begins after the entry `at_seq` of the
-- queue `at_queue`.
CREATE PROCEDURE coordination_settle(of_session VARBINARY(16), of_generation BIGINT, at_queue BIGINT, at_seq BIGINT, most BIGINT)
SQL SECURITY INVOKER
  SELECT e.queue AS queue, e.seq AS seq, e.id AS id, q.path AS path
    FROM coordination_entries e JOIN coordination_queues q ON q.id = e.queue
    WHERE e.session = of_session AND e.generation < of_generation
      AND e.queue >= at_queue AND (e.queue > at_queue OR e.seq > at_seq)
    ORDER BY e.queue, e.seq LIMIT most
//
-- Removes one of the entries that `coordination_settle` has returned. 'locked': it could not be removed, because another
-- transaction has locked a row.
CREATE PROCEDURE coordination_settle_one(of_session VARBINARY(16), of_generation BIGINT, of_queue BIGINT, of_seq BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE locked, its_seq BIGINT;
  DECLARE is_gone BOOLEAN DEFAULT FALSE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  CALL coordination_check_writable();
  START TRANSACTION;
  -- SKIP LOCKED, because heartbeats are sent on the same connection: they must not wait for a transaction that has locked the
  -- queue's row.
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
-- Ends a session and removes its entries. 'more': entries are left for the next call; 'locked': the rest could not be removed,
-- because other transactions have locked the rows. If there is no such session, a row that says that it is over is added: so if
-- a call that opens the session was given up and arrives later, it is refused.
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
-- Writes a value, or removes it if `of_text` is NULL, provided that the value has the version `expected`; and writes `many`
-- records beside it. `names` has the names of the records, with commas between them. `lengths` has the lengths of their texts
-- in bytes, with commas between them, and `-` for a record that is to be removed. `datas` has the texts, one after the other.
CREATE PROCEDURE coordination_write(
  of_session VARBINARY(16), of_generation BIGINT, of_path VARBINARY(640), expected BIGINT, of_text LONGBLOB,
  if_empty BOOLEAN, of_id BIGINT, names LONGBLOB, lengths LONGBLOB, datas LONGBLOB, many BIGINT
) SQL SECURITY INVOKER
BEGIN
  DECLARE its_status, admitted VARCHAR(10);
  DECLARE its_queue, its_last, its_version, its_before, its_remaining, its_now BIGINT;
  DECLARE its_value, its_text, its_data LONGBLOB;
  DECLARE its_blocker VARBINARY(64);
  DECLARE its_name, its_length VARBINARY(255);
  DECLARE is_there, is_too_long BOOLEAN;
  DECLARE nth INT DEFAULT 1;
  DECLARE place BIGINT DEFAULT 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  ROLLBACK;
  START TRANSACTION;
  CALL coordination_lock_queue(of_path, its_queue, its_last);
  writing: BEGIN
    SET its_status = 'other';
    SELECT q.version, q.value INTO its_version, its_value FROM coordination_queues q WHERE q.id = its_queue;
    IF NOT (its_version <=> expected) THEN
      LEAVE writing;
    END IF;
    IF if_empty THEN
      CALL coordination_standing(
        its_queue, its_last + 1, FALSE, TRUE, its_blocker, its_before, its_remaining, its_text, is_too_long);
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
      -- Only old rows of this queue are removed: the queue is locked, so no other step removes them at the same time.
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
  CALL coordination_admit(of_session, of_generation, admitted);
  IF admitted <> 'ok' THEN
    ROLLBACK;
    SET its_status = admitted;
  END IF;
  COMMIT;
  IF is_too_long THEN
    CALL coordination_shorten_all(its_queue);
  END IF;
  SELECT its_status AS status, its_version AS version, its_value AS value;
END
//
-- A page of the queues whose paths are between `after` and `upto`: each with the text of its first living entry, and with its
-- value.
CREATE PROCEDURE coordination_list(after VARBINARY(1024), upto VARBINARY(1024), most BIGINT) SQL SECURITY INVOKER
  SELECT q.path AS path, (
      SELECT STRAIGHT_JOIN e.text FROM coordination_entries e JOIN coordination_sessions s ON s.id = e.session
        WHERE e.queue = q.id AND e.seq >= q.first AND s.expires > {now} ORDER BY e.seq LIMIT 1
    ) AS entry, q.value AS value
    FROM coordination_queues q FORCE INDEX (path) WHERE q.path > after AND q.path < upto ORDER BY q.path LIMIT most
//
-- Removes queues that are empty and in which nothing was entered or written for the time `unused`. Each call looks at one page
-- of queues; it returns the path at which the page ended (NULL: there are no more queues), and how many queues were removed.
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
  CALL coordination_check_writable();
  SET its_now = {now}, at_path = after;
  START TRANSACTION;
  -- Locks the row of the namespace, so that only one client at a time prunes queues of the namespace.
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
      -- The row is found by `path`, as in all steps that wait for its lock, so that all lock the indexes in the same order.
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
-- Encodes a name in the way that is the same for all stores.
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
-- A holder calls this (by `coordination_fence`) as the first statement of a transaction of its own. It fails unless the token
-- is that of a current holder. If it succeeds, no other client gets the lock before the transaction ends.
--
-- For that, it locks the row of the holder's entry. Steps that would remove the entry, also because its session is over, leave
-- it there as long as its row is locked. So the entries behind it stay blocked. In a SERIALIZABLE transaction, InnoDB would
-- lock all rows that this reads, also that of the session, so that the session's heartbeats would have to wait. So such
-- transactions are refused.
CREATE PROCEDURE coordination_fence_in(
  of_namespace LONGTEXT CHARACTER SET utf8mb4, of_kind VARCHAR(64) CHARACTER SET utf8mb4,
  of_name LONGTEXT CHARACTER SET utf8mb4, token BIGINT
) SQL SECURITY DEFINER
BEGIN
  DECLARE namespace_part, name_part VARBINARY(255);
  DECLARE its_queue, its_first, its_seq BIGINT;
  DECLARE its_session VARBINARY(16);
  DECLARE is_shared, is_refused BOOLEAN;
  -- MariaDB and MySQL have different names for this setting. The comments make each server see only its own name.
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
  -- Locks the row only if it was found above: if it did not exist, InnoDB would lock the gap in its place, and no rows could be
  -- inserted there. It is enough to check afterwards that the row still exists: no entry can have come before it since.
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
