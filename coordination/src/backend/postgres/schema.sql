-- The tables and functions in the database. The first client that finds none there creates them, under a lock. `{schema}` is
-- the schema's name in quotes, for statements; `{schema_name}` is the name without quotes.
--
--   queues     the queues; path: `<namespace>/<kind>/<name>`, in the encoding that all stores use; last: the newest number
--              that was given in the queue; first: no entry of the queue has a smaller number than this, and so the queue is
--              empty if this is larger than `last`;
--              heard: until this time, some client may listen to changes of the queue;
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
-- Times are in microseconds by the server's clock. Texts are stored as bytes, so that no collation, encoding or time zone
-- matters.
--
-- Invariants:
--
-- * Whoever adds, changes or removes an entry has locked the row of its queue. So the step that adds an entry sees all earlier
--   entries, and the step that removes an entry sees all entries that it has blocked.
-- * A session is over when its row says so, and not as soon as its time has passed. A step that finds that the time has
--   passed locks the row and writes into it that the session is over, before it removes an entry of the session. A heartbeat
--   that comes at the same time either has locked the row before and extends the lease, or finds that the session is over.
-- * A step waits for at most two locks, in this order: that of a queue, and then that of its own session. It takes any other
--   lock only if that is free; otherwise it leaves undone what it needs the lock for, and later steps do that. So no two
--   steps wait for each other.

CREATE TABLE {schema}.version (
  version integer NOT NULL
);

CREATE TABLE {schema}.queues (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  path bytea NOT NULL UNIQUE,
  last bigint NOT NULL,
  first bigint NOT NULL DEFAULT 0,
  heard bigint NOT NULL DEFAULT 0,
  version bigint,
  value bytea
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

CREATE TABLE {schema}.sessions (
  id bytea PRIMARY KEY,
  namespace bytea NOT NULL,
  member bytea,
  channel text NOT NULL,
  lease bigint NOT NULL,
  expires bigint,
  forget_at bigint,
  generation bigint NOT NULL,
  UNIQUE (namespace, member)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
CREATE INDEX sessions_expires ON {schema}.sessions (expires) WHERE expires IS NOT NULL;
CREATE INDEX sessions_forget_at ON {schema}.sessions (forget_at) WHERE forget_at IS NOT NULL;

CREATE TABLE {schema}.entries (
  queue bigint NOT NULL,
  seq bigint NOT NULL,
  id bytea NOT NULL UNIQUE,
  session bytea NOT NULL,
  shared boolean NOT NULL,
  generation bigint NOT NULL,
  text bytea NOT NULL,
  PRIMARY KEY (queue, seq)
  -- Between two grants the table is often empty. If the server cut it off then, connections would plan to read all of it, and go on
  -- with that plan when it is full of removed rows.
) WITH (vacuum_truncate = false, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);
CREATE INDEX entries_exclusive ON {schema}.entries (queue, seq) WHERE NOT shared;
CREATE INDEX entries_session ON {schema}.entries (session);

CREATE TABLE {schema}.records (
  queue bigint NOT NULL,
  name bytea NOT NULL,
  data bytea NOT NULL,
  PRIMARY KEY (queue, name)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

CREATE TABLE {schema}.created (
  queue bigint NOT NULL,
  id bigint NOT NULL,
  at bigint NOT NULL,
  PRIMARY KEY (queue, id)
);
CREATE INDEX created_at ON {schema}.created (at);

CREATE TABLE {schema}.floors (
  namespace bytea PRIMARY KEY,
  last bigint NOT NULL
);

-- The time by the server's clock. `extract` would compute with numbers of any length, which takes longer. A `double precision` with
-- seconds in it is exact to the microsecond until the year 2106; after that the result may be one microsecond off, but never goes back.
CREATE FUNCTION {schema}.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $f$
  SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint
$f$;

-- Each step calls this first, `enter` and `leave` only if `has_begun` finds other settings. It makes settings for the
-- transaction, because the role, the database or a pooler may have made others. With them, each statement of the step sees
-- what was committed before it; the step calls only functions and operators of PostgreSQL and of this schema; and what it has
-- changed is on the disk when it is answered. It waits for a lock for at most the time that the client has set when it
-- connected (`coordination.lock_timeout`), because the client's heartbeats wait for the step. Behind a pooler, that setting
-- may be another client's, or missing; if it is missing, 50 ms are used.
CREATE FUNCTION {schema}.begin_step() RETURNS void LANGUAGE plpgsql AS $f$
DECLARE
  -- Nobody reads it. But an assignment is evaluated at once, where `PERFORM` costs a query.
  made text;
BEGIN
  -- Otherwise, whoever may create functions in a schema of the role's search path could have them called here with the role's
  -- rights.
  made := pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'transactions of this role begin with the isolation level %, and not with read committed',
      pg_catalog.current_setting('transaction_isolation') USING ERRCODE = 'SETUP';
  END IF;
  IF pg_catalog.current_setting('synchronous_commit') IN ('off', 'local') THEN
    made := pg_catalog.set_config('synchronous_commit', 'on', true);
  END IF;
  made := pg_catalog.set_config('lock_timeout',
    coalesce(nullif(pg_catalog.current_setting('coordination.lock_timeout', true), ''), '50ms'), true);
  -- The client needs the warning by which the server says that a commit has not waited for its replica.
  IF pg_catalog.current_setting('client_min_messages') = 'error' THEN
    made := pg_catalog.set_config('client_min_messages', 'warning', true);
  END IF;
END
$f$;

-- Whether the settings are already those that `begin_step` makes, so that a step need not call it. A client that is connected to the
-- server itself has made them for its connection. Looking at them costs a fifth of making them: the server evaluates `search_path`
-- anew after each change, also after that at the transaction's end.
--
-- The search path may be the role's own here. So all that is called is named with its schema, also the operators. The planner puts
-- this expression in the place of the call.
CREATE FUNCTION {schema}.has_begun() RETURNS boolean LANGUAGE sql STABLE AS $f$
  SELECT pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.=) 'pg_catalog, pg_temp'
    AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
    AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) 'off'
    AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) 'local'
    AND pg_catalog.current_setting('lock_timeout')
      OPERATOR(pg_catalog.=) pg_catalog.current_setting('coordination.lock_timeout', true)
    AND pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.<>) 'error'
$f$;

-- Locks the row of a queue and returns it. Creates the row if it does not exist.
CREATE FUNCTION {schema}.lock_queue(of_path bytea) RETURNS {schema}.queues LANGUAGE plpgsql AS $f$
DECLARE
  found_queue {schema}.queues;
  floor bigint;
BEGIN
  LOOP
    SELECT * INTO found_queue FROM {schema}.queues WHERE path = of_path FOR NO KEY UPDATE;
    IF FOUND THEN
      RETURN found_queue;
    END IF;
    SELECT last INTO floor FROM {schema}.floors
      WHERE namespace = substring(of_path FROM 1 FOR position('/'::bytea IN of_path) - 1);
    INSERT INTO {schema}.queues (path, last) VALUES (of_path, coalesce(floor, 0)) ON CONFLICT DO NOTHING;
    IF FOUND THEN
      -- It may have been made, used and pruned by others since the floor was read. From here on nobody else can.
      UPDATE {schema}.queues q SET last = f.last FROM {schema}.floors f
        WHERE q.path = of_path AND f.last > q.last
          AND f.namespace = substring(of_path FROM 1 FOR position('/'::bytea IN of_path) - 1);
    END IF;
  END LOOP;
END
$f$;

-- Notes that a step of the session came on the connection with this number (`generation`). 'stale': an earlier step of the
-- session came on a newer connection, so this step is refused.
CREATE FUNCTION {schema}.raise_generation(of_session bytea, of_generation bigint) RETURNS text LANGUAGE plpgsql AS $f$
DECLARE
  known bigint;
BEGIN
  -- Almost always, an earlier step came on the same connection.
  SELECT generation INTO known FROM {schema}.sessions WHERE id = of_session;
  IF known = of_generation THEN
    RETURN 'ok';
  END IF;
  UPDATE {schema}.sessions SET generation = of_generation WHERE id = of_session AND generation < of_generation;
  -- A step on a newer connection may have come while this step waited for the row.
  PERFORM 1 FROM {schema}.sessions WHERE id = of_session AND generation > of_generation;
  RETURN CASE WHEN FOUND THEN 'stale' ELSE 'ok' END;
END
$f$;

-- Checks whether a step of this session is allowed: 'ok', or why it is refused ('lost' or 'stale'). Locks the session's row, so
-- that the session cannot end before the step has ended.
--
-- If a client has given up a call together with its connection, the call may be carried out late. So a call is refused if an
-- earlier call of its session came on a newer connection, that is with a higher generation.
CREATE FUNCTION {schema}.admit(of_session bytea, of_generation bigint) RETURNS text LANGUAGE plpgsql AS $f$
DECLARE
  known record;
BEGIN
  SELECT expires, generation INTO known FROM {schema}.sessions WHERE id = of_session FOR KEY SHARE;
  IF NOT FOUND OR known.expires IS NULL OR known.expires <= {schema}.clock() THEN
    RETURN 'lost';
  END IF;
  -- The step has locked its queue's row before. So a step on a newer connection that has changed this queue has ended, and what
  -- it has written to the session's row is seen here.
  IF known.generation = of_generation THEN
    RETURN 'ok';
  END IF;
  RETURN {schema}.raise_generation(of_session, of_generation);
END
$f$;

-- The name of the channel on which changes of a queue are published. The client computes the same name.
CREATE FUNCTION {schema}.channel_of(path bytea) RETURNS text LANGUAGE sql IMMUTABLE AS $f$
  SELECT 'coordination:' || substr(encode(sha256(convert_to('{schema_name}.', 'UTF8') || path), 'hex'), 1, 40)
$f$;

-- Publishes a change of a queue on the queue's channel, if some client may listen (`heard`).
CREATE FUNCTION {schema}.tell(this_queue {schema}.queues, what text) RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
  IF this_queue.heard > {schema}.clock() THEN
    PERFORM pg_notify({schema}.channel_of(this_queue.path), convert_from(this_queue.path, 'SQL_ASCII') || ' ' || what);
  END IF;
END
$f$;

-- Notes that some client listens to a queue, so that changes are published for the next 30 seconds. A client that listens calls
-- this more often than that.
CREATE FUNCTION {schema}.hear(of_path bytea) RETURNS void LANGUAGE plpgsql AS $f$
DECLARE
  now bigint := {schema}.clock();
  this_queue {schema}.queues;
BEGIN
  PERFORM 1 FROM {schema}.queues WHERE path = of_path AND heard > now + 15000000;
  IF NOT FOUND THEN
    this_queue := {schema}.lock_queue(of_path);
    UPDATE {schema}.queues SET heard = {schema}.clock() + 30000000 WHERE id = this_queue.id;
  END IF;
END
$f$;

-- The entry with the number `gone` is gone or has become shared; its queue's row is locked. Notifies the owners of the entries
-- of which it was the nearest blocker, each on the channel of the owner's process. The message says whether anything else
-- blocks that entry (`free` or `blocked`).
CREATE FUNCTION {schema}.pass(this_queue {schema}.queues, gone bigint, was_shared boolean, is_gone boolean)
RETURNS void LANGUAGE plpgsql AS $f$
DECLARE
  waiter record;
  are_shared_between boolean := false;
  is_turn boolean;
  last bigint;
BEGIN
  -- Owners of entries behind the next exclusive entry are not notified, because that one blocks them.
  SELECT coalesce(min(e.seq), this_queue.last) INTO last
    FROM {schema}.entries e WHERE e.queue = this_queue.id AND e.seq > gone AND NOT e.shared;
  PERFORM {schema}.tell(this_queue, CASE WHEN is_gone THEN 'gone ' ELSE 'shared ' END || gone);
  FOR waiter IN
    SELECT e.seq, e.shared, s.channel, s.expires FROM {schema}.entries e JOIN {schema}.sessions s ON s.id = e.session
      WHERE e.queue = this_queue.id AND e.seq > gone AND e.seq <= last ORDER BY e.seq
  LOOP
    IF waiter.shared THEN
      EXIT WHEN was_shared;
      are_shared_between := true;
    ELSE
      EXIT WHEN are_shared_between OR NOT is_gone;
    END IF;
    -- This is computed once for all waiters: between them and the entry that is gone there are only shared entries.
    IF is_turn IS NULL AND waiter.shared THEN
      is_turn := NOT EXISTS (
        SELECT FROM {schema}.entries e
          WHERE e.queue = this_queue.id AND e.seq >= this_queue.first AND e.seq < gone AND NOT e.shared);
    ELSIF is_turn IS NULL THEN
      is_turn := NOT EXISTS (
        SELECT FROM {schema}.entries e
          WHERE e.queue = this_queue.id AND e.seq >= this_queue.first AND e.seq < gone);
    END IF;
    PERFORM pg_notify(waiter.channel, concat_ws(' ', convert_from(this_queue.path, 'SQL_ASCII'), gone,
      CASE WHEN waiter.shared THEN 'shared' ELSE 'exclusive' END, waiter.seq,
      -- If the waiter's session is over, it must not take the lock because of this message. So it is sent `blocked`, and asks
      -- the server.
      CASE WHEN is_turn AND waiter.expires > {schema}.clock() THEN 'free' ELSE 'blocked' END));
    EXIT WHEN NOT waiter.shared;
  END LOOP;
END
$f$;

-- Marks a session as over. From then on it counts as ended, even if it still has entries.
CREATE FUNCTION {schema}.end_session(of_session bytea) RETURNS void LANGUAGE plpgsql AS $f$
BEGIN
  UPDATE {schema}.sessions SET expires = 0, member = NULL WHERE id = of_session AND expires > 0;
END
$f$;

-- For how long the lease of a session still lasts; 0: it has run out, or there is no such session. If it would last for longer than
-- the session has asked for, the server's clock was set back after the last heartbeat. Then the lease begins anew, as with a heartbeat
-- that comes just now, unless another step has locked the row. So do all such leases in this queue (NULL: in none): if each of many
-- dead clients stood in the way before its lease began anew, the last one would be gone only after as many leases.
CREATE FUNCTION {schema}.remaining_of(of_session bytea, of_queue bigint) RETURNS bigint LANGUAGE plpgsql AS $f$
DECLARE
  known record;
  now bigint;
BEGIN
  SELECT expires, lease INTO known FROM {schema}.sessions WHERE id = of_session;
  -- The clock is read after the row, and again under the row's lock: a heartbeat that came meanwhile must not be undone.
  now := {schema}.clock();
  IF known.expires > now + known.lease THEN
    UPDATE {schema}.sessions SET expires = {schema}.clock() + lease WHERE id IN (
      SELECT s.id FROM {schema}.sessions s
        WHERE (s.id = of_session OR s.id IN (SELECT e.session FROM {schema}.entries e WHERE e.queue = of_queue))
          AND s.expires > {schema}.clock() + s.lease LIMIT 200 FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  RETURN greatest(least(coalesce(known.expires, 0) - now, known.lease), 0);
END
$f$;

-- Ends a session if its time has passed. False: it is alive, or another step has locked its row, and so may be extending or
-- ending it.
CREATE FUNCTION {schema}.end_if_expired(of_session bytea) RETURNS boolean LANGUAGE plpgsql AS $f$
DECLARE
  known record;
BEGIN
  SELECT expires INTO known FROM {schema}.sessions WHERE id = of_session;
  IF NOT FOUND OR known.expires IS NULL OR known.expires = 0 THEN
    RETURN true;
  END IF;
  SELECT expires INTO known FROM {schema}.sessions WHERE id = of_session FOR UPDATE SKIP LOCKED;
  IF NOT FOUND OR known.expires > {schema}.clock() THEN
    PERFORM {schema}.remaining_of(of_session, NULL);
    RETURN false;
  END IF;
  PERFORM {schema}.end_session(of_session);
  RETURN true;
END
$f$;

-- Removes an entry of a queue whose row is locked. False: the entry stays, because its holder's own transaction has locked the
-- entry's row, see `coordination_fence`.
CREATE FUNCTION {schema}.remove(this_queue {schema}.queues, of_seq bigint) RETURNS boolean LANGUAGE plpgsql AS $f$
DECLARE
  entry record;
BEGIN
  SELECT e.shared INTO entry FROM {schema}.entries e
    WHERE e.queue = this_queue.id AND e.seq = of_seq FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN NOT EXISTS (SELECT FROM {schema}.entries e WHERE e.queue = this_queue.id AND e.seq = of_seq);
  END IF;
  DELETE FROM {schema}.entries e WHERE e.queue = this_queue.id AND e.seq = of_seq;
  -- No entry has a number above the queue's newest one. So if this was the newest, nobody waits behind it. An entry that the
  -- calling step itself has just entered is not in `last` yet, but that step's answer says what blocks it.
  IF of_seq < this_queue.last OR this_queue.heard > {schema}.clock() THEN
    PERFORM {schema}.pass(this_queue, of_seq, entry.shared, true);
  END IF;
  RETURN true;
END
$f$;

-- Removes entries of a session that is over: at most `most` of them, and only those whose rows are not locked. Returns how many
-- were removed. If no entry is left, marks the session as empty.
CREATE FUNCTION {schema}.clear(of_session bytea, most bigint) RETURNS bigint LANGUAGE plpgsql AS $f$
DECLARE
  entry record;
  this_queue {schema}.queues;
  removed bigint := 0;
BEGIN
  FOR entry IN
    SELECT e.queue, e.seq FROM {schema}.entries e JOIN {schema}.queues q ON q.id = e.queue
      WHERE e.session = of_session LIMIT most
      FOR NO KEY UPDATE OF q SKIP LOCKED FOR UPDATE OF e SKIP LOCKED
  LOOP
    SELECT * INTO this_queue FROM {schema}.queues WHERE id = entry.queue;
    PERFORM {schema}.remove(this_queue, entry.seq);
    removed := removed + 1;
  END LOOP;
  IF NOT EXISTS (SELECT FROM {schema}.entries WHERE session = of_session) THEN
    UPDATE {schema}.sessions SET expires = NULL, forget_at = {schema}.clock() + 60000000
      WHERE id = (
        SELECT id FROM {schema}.sessions WHERE id = of_session AND expires IS NOT NULL FOR UPDATE SKIP LOCKED);
  END IF;
  RETURN removed;
END
$f$;

-- Sessions whose time has passed since then are looked for.
--
-- As long as any client's transaction is open, each heartbeat leaves a row version that cannot be removed, and a scan of the
-- index finds all of them. So usually only sessions that ended within the last 30 seconds are looked for. If other clients go
-- on sending heartbeats, these find each session in that time. Only one heartbeat in a hundred looks further back (`all_times`).
CREATE FUNCTION {schema}.since(all_times boolean, now bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $f$
  SELECT CASE WHEN all_times THEN 1 ELSE now - 30000000 END
$f$;

-- Ends sessions whose time has passed, and removes their entries: only as many as there is time for between two heartbeats.
CREATE FUNCTION {schema}.sweep(all_times boolean) RETURNS void LANGUAGE plpgsql AS $f$
DECLARE
  now bigint := {schema}.clock();
  since bigint := {schema}.since(all_times, now);
  dead record;
  budget bigint := 100;
BEGIN
  UPDATE {schema}.sessions SET expires = 0, member = NULL WHERE id IN (
    -- `expires` is 1 if an operator has ended the session by hand.
    SELECT id FROM {schema}.sessions WHERE expires = 1 OR expires BETWEEN since AND now LIMIT 200 FOR UPDATE SKIP LOCKED);
  FOR dead IN
    SELECT id FROM {schema}.sessions WHERE expires = 0 LIMIT 10 FOR UPDATE SKIP LOCKED
  LOOP
    budget := budget - {schema}.clear(dead.id, budget);
    EXIT WHEN budget <= 0;
  END LOOP;
  DELETE FROM {schema}.sessions WHERE id IN (
    SELECT id FROM {schema}.sessions WHERE forget_at <= now LIMIT 20 FOR UPDATE SKIP LOCKED);
END
$f$;

-- Finds the newest entry with a smaller number that blocks an entry of this mode: `before` is its number, NULL if there is
-- none, and `remaining` is for how long its lease still lasts. If the queue is locked, entries of sessions that are over are
-- removed on the way. If it is not, such an entry may be returned, with a `remaining` of 0.
CREATE FUNCTION {schema}.standing(
  this_queue {schema}.queues, of_seq bigint, is_shared boolean, is_locked boolean,
  OUT blocker bytea, OUT before bigint, OUT remaining bigint, OUT blocker_text bytea
) LANGUAGE plpgsql AS $f$
DECLARE
  entry record;
  budget integer := 300;
BEGIN
  LOOP
    IF is_shared THEN
      SELECT e.id, e.seq, e.session, e.text INTO entry FROM {schema}.entries e
        WHERE e.queue = this_queue.id AND e.seq >= this_queue.first AND e.seq < of_seq AND NOT e.shared
        ORDER BY e.seq DESC LIMIT 1;
    ELSE
      SELECT e.id, e.seq, e.session, e.text INTO entry FROM {schema}.entries e
        WHERE e.queue = this_queue.id AND e.seq >= this_queue.first AND e.seq < of_seq
        ORDER BY e.seq DESC LIMIT 1;
    END IF;
    IF NOT FOUND THEN
      RETURN;
    END IF;
    remaining := {schema}.remaining_of(entry.session, this_queue.id);
    IF remaining = 0 AND is_locked AND budget > 0 THEN
      budget := budget - 1;
      IF {schema}.end_if_expired(entry.session) THEN
        CONTINUE WHEN {schema}.remove(this_queue, entry.seq);
      END IF;
    END IF;
    blocker := entry.id;
    before := entry.seq;
    blocker_text := entry.text;
    RETURN;
  END LOOP;
END
$f$;

-- Adds an entry to a queue, and says which entry blocks it. An entry with this id that is there already keeps its number.
--
-- `enter` and `leave` have a short way each, for a lock that nobody else wants, with half the statements of the long one: each
-- statement within a function costs 3 to 5 us, however little it does. A queue whose `first` is larger than its `last` has no
-- entry: so no entry was entered before under this id, and nothing blocks the new one. `leave` leaves queues like this if the entry
-- was the only one. Where the short way ends, it has changed the same as the long one would have.
CREATE FUNCTION {schema}.enter(
  of_session bytea, of_generation bigint, of_path bytea, of_id bytea, is_shared boolean, of_text bytea,
  OUT status text, OUT seq bigint, OUT blocker bytea, OUT before_seq bigint, OUT remaining bigint, OUT blocker_text bytea
) LANGUAGE plpgsql AS $f$
DECLARE
  this_queue {schema}.queues;
  at record;
  is_new boolean;
  now bigint;
  its_queue bigint;
  its_heard bigint;
BEGIN
  IF {schema}.has_begun() IS NOT TRUE THEN
    PERFORM {schema}.begin_step();
  END IF;
  now := {schema}.clock();
  -- The short way. If another step has locked the queue's row, this waits for that step, and then looks at the row again.
  UPDATE {schema}.queues q SET last = greatest(q.last + 1, now), first = greatest(q.last + 1, now)
    WHERE q.path = of_path AND q.first > q.last RETURNING q.id, q.last, q.heard INTO its_queue, seq, its_heard;
  IF FOUND THEN
    -- As `admit` does, this locks the session's row, and is a statement of its own. So it sees what steps that had locked the queue
    -- before have written into the session's row.
    INSERT INTO {schema}.entries (queue, seq, id, session, shared, generation, text)
      SELECT its_queue, enter.seq, of_id, of_session, is_shared, of_generation, of_text FROM {schema}.sessions s
        WHERE s.id = of_session AND s.expires > {schema}.clock() AND s.generation = of_generation FOR KEY SHARE;
    IF FOUND THEN
      status := 'ok';
      IF its_heard > now THEN
        SELECT * INTO this_queue FROM {schema}.queues q WHERE q.id = its_queue;
        PERFORM {schema}.tell(this_queue, 'entered');
      END IF;
      RETURN;
    END IF;
    -- The session is over, or the call came on another connection than the last one. The queue is still empty. The number that was
    -- taken is given to nobody.
    UPDATE {schema}.queues q SET first = q.last + 1 WHERE q.id = its_queue;
    seq := NULL;
  END IF;
  -- The long way.
  this_queue := {schema}.lock_queue(of_path);
  status := {schema}.admit(of_session, of_generation);
  IF status <> 'ok' THEN
    RETURN;
  END IF;
  SELECT e.seq INTO seq FROM {schema}.entries e WHERE e.id = of_id AND e.queue = this_queue.id;
  is_new := NOT FOUND;
  IF is_new THEN
    seq := greatest(this_queue.last + 1, {schema}.clock());
    INSERT INTO {schema}.entries (queue, seq, id, session, shared, generation, text)
      VALUES (this_queue.id, enter.seq, of_id, of_session, is_shared, of_generation, of_text);
    -- `tell` checks this too, but `PERFORM` costs a query of its own.
    IF this_queue.heard > {schema}.clock() THEN
      PERFORM {schema}.tell(this_queue, 'entered');
    END IF;
  END IF;
  at := {schema}.standing(this_queue, seq, is_shared, true);
  blocker := at.blocker;
  before_seq := at.before;
  remaining := at.remaining;
  blocker_text := at.blocker_text;
  IF is_new THEN
    -- If this entry is exclusive and nothing is before it, there is nothing with a smaller number than its own. `first` says so
    -- to later steps. Otherwise their scans of the index would find removed entries there as long as any client's transaction
    -- is open.
    UPDATE {schema}.queues q SET last = enter.seq,
        first = CASE WHEN is_shared OR enter.before_seq IS NOT NULL THEN q.first ELSE enter.seq END
      WHERE q.id = this_queue.id;
  END IF;
END
$f$;

CREATE FUNCTION {schema}.update(
  of_session bytea, of_generation bigint, of_path bytea, of_id bytea, is_shared boolean, of_text bytea, of_seq bigint,
  OUT status text
) LANGUAGE plpgsql AS $f$
DECLARE
  this_queue {schema}.queues;
  entry record;
BEGIN
  PERFORM {schema}.begin_step();
  this_queue := {schema}.lock_queue(of_path);
  status := {schema}.admit(of_session, of_generation);
  IF status <> 'ok' THEN
    RETURN;
  END IF;
  SELECT e.shared INTO entry FROM {schema}.entries e
    WHERE e.queue = this_queue.id AND e.seq = of_seq AND e.id = of_id AND e.session = of_session;
  IF NOT FOUND THEN
    status := 'gone';
    RETURN;
  END IF;
  IF entry.shared AND NOT is_shared THEN
    status := 'exclusive';
    RETURN;
  END IF;
  PERFORM 1 FROM {schema}.entries e
    WHERE e.queue = this_queue.id AND e.seq = of_seq FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    status := 'fenced';
    RETURN;
  END IF;
  UPDATE {schema}.entries e SET shared = is_shared, text = of_text WHERE e.queue = this_queue.id AND e.seq = of_seq;
  IF entry.shared = is_shared THEN
    PERFORM {schema}.tell(this_queue, 'updated');
  ELSE
    PERFORM {schema}.pass(this_queue, of_seq, false, false);
  END IF;
END
$f$;

CREATE FUNCTION {schema}.leave(
  of_session bytea, of_generation bigint, of_path bytea, of_id bytea, of_seq bigint, OUT status text
) LANGUAGE plpgsql AS $f$
DECLARE
  this_queue {schema}.queues;
  its_seq bigint;
  its_queue bigint;
  its_heard bigint;
BEGIN
  IF {schema}.has_begun() IS NOT TRUE THEN
    PERFORM {schema}.begin_step();
  END IF;
  -- The short way, for the only entry of a queue: nothing has a smaller number, and nothing a larger one. Nobody waits behind it.
  IF of_session IS NOT NULL AND of_seq IS NOT NULL THEN
    UPDATE {schema}.queues q SET first = q.last + 1
      WHERE q.path = of_path AND q.first = of_seq AND q.last = of_seq RETURNING q.id, q.heard INTO its_queue, its_heard;
    IF FOUND THEN
      DELETE FROM {schema}.entries WHERE ctid = (
        SELECT e.ctid FROM {schema}.entries e JOIN {schema}.sessions s ON s.id = of_session AND s.generation = of_generation
          WHERE e.queue = its_queue AND e.seq = of_seq AND e.id = of_id FOR UPDATE OF e SKIP LOCKED);
      IF FOUND THEN
        status := 'ok';
        IF its_heard > {schema}.clock() THEN
          SELECT * INTO this_queue FROM {schema}.queues q WHERE q.id = its_queue;
          PERFORM {schema}.tell(this_queue, 'gone ' || of_seq);
        END IF;
        RETURN;
      END IF;
      -- The call came on another connection than the last one; or the holder's own transaction has locked the entry
      -- (`coordination_fence`), so that it stays; or it is gone already.
      UPDATE {schema}.queues q SET first = of_seq WHERE q.id = its_queue;
    END IF;
  END IF;
  -- The long way.
  this_queue := {schema}.lock_queue(of_path);
  IF of_session IS NOT NULL THEN
    status := {schema}.raise_generation(of_session, of_generation);
    IF status <> 'ok' THEN
      RETURN;
    END IF;
  END IF;
  SELECT e.seq INTO its_seq FROM {schema}.entries e
    WHERE e.id = of_id AND e.queue = this_queue.id AND e.seq = coalesce(of_seq, e.seq);
  status := CASE WHEN NOT FOUND OR {schema}.remove(this_queue, its_seq) THEN 'ok' ELSE 'fenced' END;
END
$f$;

-- Says which entry blocks an entry now. Locks and writes nothing, unless an entry whose session is over has to be removed, or a lease
-- to be shortened.
CREATE FUNCTION {schema}.position(
  of_session bytea, of_path bytea, of_id bytea, is_shared boolean, of_seq bigint,
  OUT status text, OUT seq bigint, OUT blocker bytea, OUT before_seq bigint, OUT remaining bigint, OUT blocker_text bytea
) LANGUAGE plpgsql AS $f$
DECLARE
  this_queue {schema}.queues;
BEGIN
  PERFORM {schema}.begin_step();
  FOR turn IN 1..2 LOOP
    PERFORM 1 FROM {schema}.entries e
      JOIN {schema}.queues q ON q.id = e.queue JOIN {schema}.sessions s ON s.id = e.session
      WHERE e.id = of_id AND e.seq = of_seq AND q.path = of_path AND s.id = of_session AND s.expires > {schema}.clock();
    IF NOT FOUND THEN
      status := 'gone';
      RETURN;
    END IF;
    IF turn = 1 THEN
      SELECT * INTO this_queue FROM {schema}.queues WHERE path = of_path;
    END IF;
    SELECT s.* INTO blocker, before_seq, remaining, blocker_text
      FROM {schema}.standing(this_queue, of_seq, is_shared, turn = 2) s;
    EXIT WHEN before_seq IS NULL OR remaining > 0;
    this_queue := {schema}.lock_queue(of_path);
  END LOOP;
  status := 'ok';
  seq := of_seq;
END
$f$;

-- Says for how long the lease of an entry still lasts that somebody waits for; 'gone': it does not block the waiter.
-- `is_shared`: the mode of the entry that waits. `listens`: the client listens to the queue's channel.
CREATE FUNCTION {schema}.look(
  of_path bytea, of_seq bigint, is_shared boolean, listens boolean, OUT status text, OUT remaining bigint
) LANGUAGE plpgsql AS $f$
DECLARE
  this_queue {schema}.queues;
  entry record;
BEGIN
  PERFORM {schema}.begin_step();
  IF listens THEN
    PERFORM {schema}.hear(of_path);
  END IF;
  status := 'gone';
  FOR turn IN 1..2 LOOP
    SELECT e.queue, e.session, e.shared INTO entry
      FROM {schema}.queues q JOIN {schema}.entries e ON e.queue = q.id
      WHERE q.path = of_path AND e.seq = of_seq;
    IF NOT FOUND OR entry.shared AND is_shared THEN
      RETURN;
    END IF;
    remaining := {schema}.remaining_of(entry.session, entry.queue);
    IF remaining > 0 THEN
      status := 'ok';
      RETURN;
    END IF;
    IF turn = 1 THEN
      this_queue := {schema}.lock_queue(of_path);
    END IF;
  END LOOP;
  IF NOT {schema}.end_if_expired(entry.session) OR NOT {schema}.remove(this_queue, of_seq) THEN
    -- Another transaction has locked one of the rows. That does not last, unless it is the holder's own transaction
    -- (`coordination_fence`). So the client is told to ask again in 20 ms.
    status := 'ok';
    remaining := 20000;
  END IF;
END
$f$;

-- Called if `read` says that it is due: notes that some client listens to the queue, shortens leases that last too long, and removes
-- the queue's entries whose sessions are over.
CREATE FUNCTION {schema}.tend(of_path bytea, OUT status text) LANGUAGE plpgsql AS $f$
DECLARE
  dead record;
BEGIN
  PERFORM {schema}.begin_step();
  PERFORM {schema}.hear(of_path);
  PERFORM {schema}.sweep(random() < 0.01);
  -- One call is for all of the queue.
  PERFORM {schema}.remaining_of(s.id, q.id) FROM {schema}.sessions s
    JOIN {schema}.entries e ON e.session = s.id JOIN {schema}.queues q ON q.id = e.queue
    WHERE s.expires > {schema}.clock() + s.lease AND e.seq >= q.first AND q.path = of_path LIMIT 1;
  FOR dead IN
    SELECT DISTINCT s.id FROM {schema}.sessions s
      JOIN {schema}.entries e ON e.session = s.id JOIN {schema}.queues q ON q.id = e.queue
      -- `+ 0` keeps the planner from the index on `expires`, which would find too many rows. So it begins with the entries of
      -- the queue.
      WHERE s.expires + 0 <= {schema}.clock() AND e.seq >= q.first AND q.path = of_path LIMIT 20
  LOOP
    IF {schema}.end_if_expired(dead.id) THEN
      PERFORM {schema}.clear(dead.id, 100);
    END IF;
  END LOOP;
  status := 'ok';
END
$f$;

-- Reads a queue as of one moment: a row for the queue, which says whether `tend` is due and the queue has to be read again
-- after it, and a row for each entry. Nothing is locked: the answer may be long, and the transaction lasts until the client has
-- received all of it.
CREATE FUNCTION {schema}.read(of_path bytea) RETURNS TABLE (
  is_due boolean, version bigint, value bytea, id bytea, seq bigint, shared boolean, text bytea, remaining bigint
) LANGUAGE plpgsql AS $f$
DECLARE
  now bigint;
BEGIN
  PERFORM {schema}.begin_step();
  now := {schema}.clock();
  RETURN QUERY
    WITH this_queue AS (
      SELECT q.* FROM {schema}.queues q WHERE q.path = of_path
    ), its_entries AS (
      SELECT e.id, e.seq, e.shared, e.text, coalesce(s.expires, 0) AS ends, coalesce(s.lease, 0) AS lease
        FROM this_queue q JOIN {schema}.entries e ON e.queue = q.id AND e.seq >= q.first
        LEFT JOIN {schema}.sessions s ON s.id = e.session
    )
    SELECT q.heard <= now + 15000000 OR EXISTS (
          -- A second more, as a heartbeat may have come since `now`.
          SELECT FROM its_entries e WHERE e.ends <= now OR e.ends > now + e.lease + 1000000),
        q.version, q.value, NULL::bytea, NULL::bigint, NULL::boolean, NULL::bytea, NULL::bigint
      FROM this_queue q
    UNION ALL
    SELECT NULL, NULL, NULL, e.id, e.seq, e.shared, e.text,
        -- An entry whose lease has run out, but which could not be removed, is returned with 250 ms left. Otherwise the client
        -- would ask again at once, and again.
        greatest(e.ends - now, CASE WHEN e.ends <= now THEN 250000 ELSE 10000 END)
      FROM its_entries e;
END
$f$;

-- Opens a session, and ends the session that the client had before (`previous`), if there was one.
CREATE FUNCTION {schema}.open(
  of_namespace bytea, of_session bytea, of_generation bigint, of_member bytea, of_channel text, of_lease bigint,
  previous bytea, OUT status text
) LANGUAGE plpgsql AS $f$
DECLARE
  known record;
BEGIN
  PERFORM {schema}.begin_step();
  IF previous IS NOT NULL THEN
    PERFORM {schema}.end_session(previous);
    PERFORM {schema}.clear(previous, 100);
  END IF;
  PERFORM {schema}.sweep(true);
  FOR turn IN 1..3 LOOP
    UPDATE {schema}.sessions SET
        expires = {schema}.clock() + of_lease, lease = of_lease, channel = of_channel,
        generation = greatest(generation, of_generation)
      WHERE id = of_session AND expires > {schema}.clock();
    IF FOUND THEN
      status := 'ok';
      RETURN;
    END IF;
    PERFORM 1 FROM {schema}.sessions WHERE id = of_session;
    IF FOUND THEN
      status := 'lost';
      RETURN;
    END IF;
    SELECT id INTO known FROM {schema}.sessions WHERE namespace = of_namespace AND member = of_member;
    IF FOUND AND NOT {schema}.end_if_expired(known.id) THEN
      -- Another step may be ending that session just now. Then the answer is 'busy', and the client tries again.
      PERFORM 1 FROM {schema}.sessions WHERE id = known.id AND expires > {schema}.clock();
      status := CASE WHEN FOUND THEN 'taken' ELSE 'busy' END;
      RETURN;
    END IF;
    INSERT INTO {schema}.sessions (id, namespace, member, channel, lease, expires, generation)
      VALUES (of_session, of_namespace, of_member, of_channel, of_lease, {schema}.clock() + of_lease, of_generation)
      ON CONFLICT DO NOTHING;
    IF FOUND THEN
      status := 'ok';
      RETURN;
    END IF;
  END LOOP;
  status := 'busy';
END
$f$;

-- Extends the lease, and returns the ids of those of the `held` entries that are gone, one after the other. `is_due`: there are
-- sessions whose time has passed, so that the client calls `clear_up` with this `all_times`. That is a transaction of its own: an
-- error in it must not undo the heartbeat, and a transaction that notifies others waits for all that do so in the whole cluster.
CREATE FUNCTION {schema}.renew(
  of_session bytea, of_generation bigint, held bytea[],
  OUT status text, OUT gone bytea, OUT is_due boolean, OUT all_times boolean
) LANGUAGE plpgsql AS $f$
DECLARE
  now bigint;
BEGIN
  PERFORM {schema}.begin_step();
  now := {schema}.clock();
  is_due := false;
  all_times := random() < 0.01;
  UPDATE {schema}.sessions SET expires = {schema}.clock() + lease, generation = of_generation
    WHERE id = of_session AND expires > {schema}.clock() AND generation <= of_generation;
  IF NOT FOUND THEN
    PERFORM 1 FROM {schema}.sessions WHERE id = of_session AND expires > {schema}.clock();
    status := CASE WHEN FOUND THEN 'stale' ELSE 'lost' END;
    RETURN;
  END IF;
  status := 'ok';
  SELECT coalesce(string_agg(h.id, ''::bytea), ''::bytea) INTO gone FROM unnest(held) AS h (id)
    WHERE NOT EXISTS (SELECT FROM {schema}.entries e WHERE e.id = h.id AND e.session = of_session);
  -- Each of these reads a range of an index, as `sweep` does. They ask for the first of its order, so that the planner does not
  -- read the table in the hope of finding one soon.
  is_due := (SELECT min(s.expires) FROM {schema}.sessions s WHERE s.expires BETWEEN 0 AND 1) IS NOT NULL
    OR (SELECT min(s.expires) FROM {schema}.sessions s
      WHERE s.expires BETWEEN {schema}.since(all_times, now) AND now) IS NOT NULL
    OR (SELECT min(s.forget_at) FROM {schema}.sessions s WHERE s.forget_at <= now) IS NOT NULL;
END
$f$;

-- Removes what ended sessions have left, if `renew` says that there is some.
CREATE FUNCTION {schema}.clear_up(all_times boolean, OUT status text) LANGUAGE plpgsql AS $f$
BEGIN
  PERFORM {schema}.begin_step();
  PERFORM {schema}.sweep(all_times);
  status := 'ok';
END
$f$;

-- Removes those entries of a session that its client does not know of: a server that has taken over from another may have
-- entries that were removed long ago. Entries that were entered on the client's current connection stay, because the client may
-- have made its list before them. 'more': more entries are to be removed; 'locked': some could not be removed, because other
-- transactions have locked their rows.
CREATE FUNCTION {schema}.settle(
  of_session bytea, of_generation bigint, known bytea[], OUT status text
) LANGUAGE plpgsql AS $f$
DECLARE
  entry record;
  this_queue {schema}.queues;
  seen integer := 0;
BEGIN
  PERFORM {schema}.begin_step();
  status := 'ok';
  FOR entry IN
    SELECT e.queue, e.seq FROM {schema}.entries e
      WHERE e.session = of_session AND e.generation < of_generation
        -- Some servers would compare each entry with every element of the array if this were written as a comparison with `ANY`
        -- or `ALL`. This form can use a hash.
        AND NOT EXISTS (SELECT FROM unnest(known) AS k (id) WHERE k.id = e.id) LIMIT 100
  LOOP
    SELECT * INTO this_queue FROM {schema}.queues WHERE id = entry.queue FOR NO KEY UPDATE SKIP LOCKED;
    seen := seen + 1;
    IF this_queue.id IS NULL OR NOT {schema}.remove(this_queue, entry.seq) THEN
      status := 'locked';
    END IF;
  END LOOP;
  IF status = 'ok' AND seen = 100 THEN
    status := 'more';
  END IF;
END
$f$;

-- Ends a session and removes its entries. 'more': entries are left for the next call; 'locked': the rest could not be removed,
-- because other transactions have locked the rows. If there is no such session, a row that says that it is over is added: so if
-- a call that opens the session was given up and arrives later, it is refused.
CREATE FUNCTION {schema}.close(of_namespace bytea, of_session bytea, OUT status text) LANGUAGE plpgsql AS $f$
DECLARE
  removed bigint;
BEGIN
  PERFORM {schema}.begin_step();
  INSERT INTO {schema}.sessions (id, namespace, channel, lease, expires, generation)
    VALUES (of_session, of_namespace, '', 0, 0, 0) ON CONFLICT DO NOTHING;
  PERFORM {schema}.end_session(of_session);
  removed := {schema}.clear(of_session, 300);
  PERFORM 1 FROM {schema}.sessions WHERE id = of_session AND expires IS NOT NULL;
  status := CASE WHEN NOT FOUND THEN 'ok' WHEN removed > 0 THEN 'more' ELSE 'locked' END;
END
$f$;

-- Writes a value, or removes it if `of_text` is NULL, provided that the value has the version `expected`; and writes records
-- beside it.
CREATE FUNCTION {schema}.write(
  of_session bytea, of_generation bigint, of_path bytea, expected bigint, of_text bytea, if_empty boolean, of_id bigint,
  names bytea[], datas bytea[], OUT status text, OUT version bigint, OUT value bytea
) LANGUAGE plpgsql AS $f$
DECLARE
  this_queue {schema}.queues;
  at record;
  now bigint;
BEGIN
  PERFORM {schema}.begin_step();
  this_queue := {schema}.lock_queue(of_path);
  status := {schema}.admit(of_session, of_generation);
  IF status <> 'ok' THEN
    RETURN;
  END IF;
  status := 'other';
  version := this_queue.version;
  value := this_queue.value;
  IF this_queue.version IS DISTINCT FROM expected THEN
    RETURN;
  END IF;
  IF if_empty THEN
    SELECT s.before INTO at FROM {schema}.standing(this_queue, this_queue.last + 1, false, true) s;
    IF at.before IS NOT NULL THEN
      RETURN;
    END IF;
  END IF;
  now := {schema}.clock();
  IF expected IS NULL THEN
    INSERT INTO {schema}.created (queue, id, at) VALUES (this_queue.id, of_id, now) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
      RETURN;
    END IF;
    DELETE FROM {schema}.created WHERE ctid IN (
      SELECT ctid FROM {schema}.created c WHERE c.at < now - 60000000 LIMIT 10 FOR UPDATE SKIP LOCKED);
  END IF;
  IF of_text IS NULL THEN
    version := coalesce(expected, 0);
    UPDATE {schema}.queues q SET version = NULL, value = NULL WHERE q.id = this_queue.id;
  ELSE
    version := greatest(this_queue.last + 1, now);
    UPDATE {schema}.queues q SET last = write.version, version = write.version, value = of_text WHERE q.id = this_queue.id;
  END IF;
  FOR at IN SELECT * FROM unnest(names, datas) AS beside (name, data) LOOP
    IF at.data IS NULL THEN
      DELETE FROM {schema}.records r WHERE r.queue = this_queue.id AND r.name = at.name;
    ELSE
      INSERT INTO {schema}.records AS r (queue, name, data) VALUES (this_queue.id, at.name, at.data)
        ON CONFLICT ON CONSTRAINT records_pkey DO UPDATE SET data = excluded.data;
    END IF;
  END LOOP;
  status := 'ok';
  value := NULL;
  PERFORM {schema}.tell(this_queue, 'written');
END
$f$;

-- The records with these names beside a queue's value.
CREATE FUNCTION {schema}.records_of(of_path bytea, names bytea[]) RETURNS TABLE (name bytea, data bytea) LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $f$
  SELECT r.name, r.data FROM {schema}.queues q JOIN {schema}.records r ON r.queue = q.id
    WHERE q.path = of_path AND r.name = ANY (names)
$f$;

-- A page of the queues whose paths are between `after` and `upto`: each with the text of its first living entry, and with its
-- value.
CREATE FUNCTION {schema}.list(after bytea, upto bytea, most bigint)
RETURNS TABLE (path bytea, entry bytea, value bytea) LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $f$
  SELECT q.path, (
      SELECT e.text FROM {schema}.entries e JOIN {schema}.sessions s ON s.id = e.session
        WHERE e.queue = q.id AND e.seq >= q.first AND s.expires > {schema}.clock() ORDER BY e.seq LIMIT 1
    ), q.value
    FROM {schema}.queues q WHERE q.path > after AND q.path < upto ORDER BY q.path LIMIT most
$f$;

-- Removes queues that are empty and in which nothing was entered or written for the time `unused`. Each call looks at one page
-- of queues; it returns the path at which the page ended (NULL: there are no more queues), and how many queues were removed.
CREATE FUNCTION {schema}.prune(
  of_namespace bytea, unused bigint, after bytea, before bytea, most bigint, OUT upto bytea, OUT removed bigint
) LANGUAGE plpgsql AS $f$
DECLARE
  this_queue {schema}.queues;
  now bigint;
  seen bigint := 0;
BEGIN
  PERFORM {schema}.begin_step();
  now := {schema}.clock();
  removed := 0;
  FOR this_queue IN
    SELECT * FROM {schema}.queues q WHERE q.path > after AND q.path < before
      ORDER BY q.path LIMIT most
  LOOP
    seen := seen + 1;
    upto := this_queue.path;
    CONTINUE WHEN this_queue.value IS NOT NULL OR this_queue.last > now - unused OR this_queue.heard > now;
    SELECT * INTO this_queue FROM {schema}.queues q WHERE q.id = this_queue.id FOR UPDATE SKIP LOCKED;
    CONTINUE WHEN NOT FOUND OR this_queue.value IS NOT NULL OR this_queue.last > now - unused
      OR EXISTS (SELECT FROM {schema}.entries e WHERE e.queue = this_queue.id)
      OR EXISTS (SELECT FROM {schema}.records r WHERE r.queue = this_queue.id)
      OR EXISTS (SELECT FROM {schema}.created c WHERE c.queue = this_queue.id AND c.at >= now - 60000000);
    INSERT INTO {schema}.floors AS f (namespace, last) VALUES (of_namespace, this_queue.last)
      ON CONFLICT (namespace) DO UPDATE SET last = greatest(f.last, excluded.last);
    DELETE FROM {schema}.created c WHERE c.queue = this_queue.id;
    DELETE FROM {schema}.queues q WHERE q.id = this_queue.id;
    removed := removed + 1;
  END LOOP;
  IF seen < most THEN
    upto := NULL;
  END IF;
END
$f$;

-- Encodes a name in the way that is the same for all stores.
CREATE FUNCTION {schema}.encoded(name text) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS $f$
DECLARE
  bytes bytea := convert_to(name, 'UTF8');
  escaped text := '';
  hashed bytea;
  bits bit varying := B'';
  byte integer;
BEGIN
  FOR place IN 0 .. length(bytes) - 1 LOOP
    byte := get_byte(bytes, place);
    -- Bytes from 128 on are handled before `chr` is called: in some encodings of a database, these numbers are no characters.
    escaped := escaped || CASE
      WHEN byte >= 128 THEN '%' || upper(to_hex(byte))
      WHEN chr(byte) ~ '^[A-Za-z0-9_-]$' THEN chr(byte)
      ELSE '%' || upper(lpad(to_hex(byte), 2, '0')) END;
  END LOOP;
  IF length(escaped) <= 200 THEN
    RETURN convert_to(escaped, 'UTF8');
  END IF;
  hashed := sha256(bytes);
  FOR place IN 0 .. 31 LOOP
    bits := bits || get_byte(hashed, place)::bit(8);
  END LOOP;
  bits := bits || B'0000';
  escaped := 'h~';
  FOR place IN 0 .. 51 LOOP
    escaped := escaped || substr('abcdefghijklmnopqrstuvwxyz234567', substring(bits FROM place * 5 + 1 FOR 5)::bit(5)::integer + 1, 1);
  END LOOP;
  RETURN convert_to(escaped, 'UTF8');
END
$f$;

-- A holder calls this in a transaction of its own, before its writes. It fails unless the token is that of a current holder. If
-- it succeeds, no other client gets the lock before the transaction ends.
--
-- For that, it locks the row of the holder's entry. Steps that would remove the entry, also because its session is over, leave
-- it there as long as its row is locked. So the entries behind it stay blocked.
CREATE FUNCTION {schema}.coordination_fence(
  name text, token bigint, namespace text DEFAULT '{namespace}', kind text DEFAULT 'lock'
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $f$
DECLARE
  entry record;
BEGIN
  SELECT e.queue, e.seq, e.shared, e.session, q.first INTO entry
    FROM {schema}.queues q JOIN {schema}.entries e ON e.queue = q.id
    WHERE q.path = {schema}.encoded(namespace) || convert_to('/' || kind || '/', 'UTF8') || {schema}.encoded(name)
      AND e.seq = token
    FOR SHARE OF e;
  IF NOT FOUND OR EXISTS (
      SELECT FROM {schema}.entries b
        WHERE b.queue = entry.queue AND b.seq >= entry.first AND b.seq < entry.seq AND NOT (b.shared AND entry.shared)
    ) OR NOT EXISTS (
      SELECT FROM {schema}.sessions s WHERE s.id = entry.session AND s.expires > {schema}.clock()
    )
  THEN
    RAISE EXCEPTION 'token % is not that of a holder of %', token, name USING ERRCODE = 'FENCE';
  END IF;
END
$f$;
