-- oldest code: 1
-- The writer assigns insertion numbers (job.seq) above every number in job and journal: AUTOINCREMENT would double the
-- cost of an insert. Times are integer microseconds since 1970. Lists of strings are JSON arrays.

CREATE TABLE job (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    type TEXT NOT NULL,
    tags TEXT NOT NULL,
    key TEXT,
    priority INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 4),
    order_at INTEGER NOT NULL,
    status TEXT NOT NULL,
    closed INTEGER NOT NULL,
    gate INTEGER,
    unmet INTEGER NOT NULL,
    fan INTEGER NOT NULL,
    held INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    n INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    lost_attempt INTEGER,
    retry_count INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    max_attempts INTEGER,
    retry TEXT,
    execution INTEGER,
    visibility INTEGER,
    lifetime INTEGER,
    assignee_id TEXT,
    assigned_at INTEGER,
    owner TEXT,
    lease_until INTEGER,
    deadline_at INTEGER,
    expires_at INTEGER,
    run_at INTEGER,
    due_at INTEGER,
    ready_at INTEGER,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    attempt_started_at INTEGER,
    last_retry_at INTEGER,
    finalized_at INTEGER,
    updated_at INTEGER NOT NULL,
    progress INTEGER NOT NULL,
    description TEXT,
    error_message TEXT NOT NULL,
    error_category TEXT,
    error_code TEXT,
    correlation_id TEXT,
    callback_url TEXT,
    idempotency_key TEXT,
    parent_id TEXT,
    redrive_of TEXT,
    after TEXT NOT NULL,
    after_any TEXT NOT NULL,
    verb TEXT NOT NULL,
    from_status TEXT,
    attempt_ready_at INTEGER,  -- when the job became ready for its latest attempt; ready_at may be of the next one
    trace TEXT,  -- the trace context of the submitting process
    uniqueness TEXT,  -- how long idempotency_key is reserved: NULL for the window, or 'while_unfinished'
    -- CASE and not IN: SQLite builds a table for a list in every statement, which doubles the cost of an insert.
    CHECK (closed IS CASE status
        WHEN 'initial_pending' THEN 0 WHEN 'running' THEN 0 WHEN 'completed' THEN 1 WHEN 'failed_retry' THEN 0
        WHEN 'unknown_retry' THEN 0 WHEN 'cancelling' THEN 0 WHEN 'failed' THEN 1 WHEN 'dead_letter' THEN 1
        WHEN 'stopped' THEN 1 WHEN 'unscheduled' THEN 1 WHEN 'unknown_stopped' THEN 1 END),
    CHECK (closed = 0 OR (finalized_at IS NOT NULL AND gate IS NULL))
) STRICT;

-- The ready set: exactly the jobs that may be claimed, in claim order.
CREATE INDEX job_ready ON job (priority, order_at, seq) WHERE gate = 0;
CREATE INDEX job_ready_type ON job (type, priority, order_at, seq) WHERE gate = 0;
CREATE INDEX job_delayed ON job (priority, due_at, seq) WHERE gate = 1;
-- Jobs that wait for other jobs, for an earlier job of their key, or to be claimed by id. With the ready and the delayed
-- jobs they are all that wait, so a listing of waiting jobs reads no finished ones.
CREATE INDEX job_waiting ON job (seq) WHERE gate >= 2;
-- Jobs that wait for their next attempt, by type; released jobs wait too, but did not fail. No other index separates
-- them from delayed jobs. OR and not IN: see the CHECK above.
CREATE INDEX job_retrying ON job (type, seq) WHERE status = 'failed_retry' OR status = 'unknown_retry';
CREATE INDEX job_released ON job (type, seq) WHERE status = 'failed_retry' AND verb = 'release';

CREATE INDEX job_key ON job (key, seq) WHERE key IS NOT NULL AND closed = 0;
-- The few jobs of a key that are in flight, ready, delayed or held; very many may wait behind them.
CREATE INDEX job_key_turn ON job (key, seq) WHERE key IS NOT NULL AND closed = 0 AND gate IS NOT 2;
-- Enforces that at most one job of a key is in flight.
CREATE UNIQUE INDEX job_key_in_flight ON job (key) WHERE key IS NOT NULL AND status IN ('running', 'cancelling');

CREATE INDEX job_assignee ON job (assignee_id, seq) WHERE status IN ('running', 'cancelling');
CREATE INDEX job_owner ON job (owner) WHERE owner IS NOT NULL;
CREATE INDEX job_lease ON job (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX job_deadline ON job (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX job_lifetime ON job (expires_at) WHERE expires_at IS NOT NULL AND closed = 0;
CREATE INDEX job_ended ON job (status, finalized_at) WHERE closed = 1;
-- Answers whether any job has a callback; in most stores none has.
CREATE INDEX job_callback ON job (seq) WHERE callback_url IS NOT NULL;

-- Bytes of a job are stored outside its row, because each status change rewrites the row.
CREATE TABLE payload (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE result (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE checkpoint (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
-- What the latest attempt has printed.
CREATE TABLE output (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;

CREATE TABLE job_tag (
    tag TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (tag, seq)
) STRICT, WITHOUT ROWID;

-- The ready set by tag.
CREATE TABLE ready_tag (
    tag TEXT NOT NULL,
    priority INTEGER NOT NULL,
    order_at INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (tag, priority, order_at, seq)
) STRICT, WITHOUT ROWID;

-- Dependencies ('after', 'any'): job_seq waits for on_seq. Spawned jobs ('spawned'): job_seq is the parent of on_seq.
CREATE TABLE edge (
    on_seq INTEGER NOT NULL,
    job_seq INTEGER NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('after', 'any', 'spawned')),
    PRIMARY KEY (on_seq, job_seq, kind)
) STRICT, WITHOUT ROWID;
CREATE INDEX edge_job ON edge (job_seq, kind);

CREATE TABLE idempotency (
    type TEXT NOT NULL,
    key TEXT NOT NULL,
    job_id TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (type, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

-- Processes that own claimed jobs while their heartbeats arrive; `intakes` is what each of them claims.
CREATE TABLE owner (
    id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    beat_at INTEGER NOT NULL,
    opened_at INTEGER,
    intakes TEXT NOT NULL DEFAULT '[]'
) STRICT, WITHOUT ROWID;

-- Assignees that were declared unresponsive and have sent no heartbeat since.
CREATE TABLE unresponsive (
    assignee_id TEXT PRIMARY KEY,
    marked_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE setting (
    name TEXT PRIMARY KEY,
    value ANY
) STRICT, WITHOUT ROWID;

-- Every change, in order. The row with the highest seq is never archived, so no number is assigned twice.
CREATE TABLE journal (
    seq INTEGER PRIMARY KEY,
    recorded_at INTEGER NOT NULL,
    job_seq INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    type TEXT NOT NULL,
    verb TEXT NOT NULL,
    from_status TEXT,
    status TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    retry_count INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    max_attempts INTEGER,
    priority INTEGER NOT NULL,
    key TEXT,
    tags TEXT NOT NULL,
    idempotency_key TEXT,
    assignee_id TEXT,
    due_at INTEGER,
    error_category TEXT,
    error_code TEXT,
    error_message TEXT NOT NULL,
    progress INTEGER NOT NULL,
    after TEXT,
    after_any TEXT,
    parent_id TEXT,
    ready_at INTEGER,
    started_at INTEGER
) STRICT;
CREATE UNIQUE INDEX journal_job ON journal (job_seq, n);

-- Counts per tag and status up to the journal row of setting 'folded'. Tag '' counts all jobs; status '' counts retries.
CREATE TABLE stat (
    tag TEXT NOT NULL,
    status TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    PRIMARY KEY (tag, status)
) STRICT, WITHOUT ROWID;

-- The change of the counts by each journal row. An update may change the tags, so it subtracts what the job's previous
-- row added.
CREATE VIEW stat_delta AS
SELECT seq, tags, status, 1 AS jobs,
       CASE WHEN from_status IS NULL OR verb = 'update' THEN retry_count
            WHEN verb IN ('fail', 'time_out', 'release', 'stop_with_retry') THEN 1
            ELSE 0 END AS retries
FROM journal
WHERE verb NOT IN ('delete', 'cleanup')
UNION ALL
SELECT seq, tags, from_status, -1,
       CASE WHEN verb IN ('delete', 'cleanup') THEN -retry_count ELSE 0 END
FROM journal
WHERE from_status IS NOT NULL AND verb <> 'update'
UNION ALL
SELECT later.seq, earlier.tags, later.from_status, -1, -earlier.retry_count
FROM journal AS later
JOIN journal AS earlier ON earlier.job_seq = later.job_seq AND earlier.n = later.n - 1
WHERE later.verb = 'update';

-- Counts per type and status up to setting 'folded'; `entered` is how often any job has entered the status.
CREATE TABLE type_stat (
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    entered INTEGER NOT NULL,
    PRIMARY KEY (type, status)
) STRICT, WITHOUT ROWID;

-- The change of those counts by each journal row.
CREATE VIEW type_delta AS
SELECT seq, type, status, 1 AS jobs, from_status IS NOT status AS entered
FROM journal
WHERE verb NOT IN ('delete', 'cleanup')
UNION ALL
SELECT seq, type, from_status, -1, 0
FROM journal
WHERE from_status IS NOT NULL;

-- Readers of the journal and their positions: rows that every consumer has read may be archived.
CREATE TABLE consumer (
    name TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,
    holder TEXT,
    held_until INTEGER,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The last batch that each writer of numbered batches has published, so that none is published twice.
CREATE TABLE publication (
    writer TEXT PRIMARY KEY,
    batch INTEGER NOT NULL,
    published_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Callbacks to deliver, one row per finished job; due_at is NULL once delivery was given up.
CREATE TABLE delivery (
    seq INTEGER PRIMARY KEY,  -- of the journal row that records the end of the job
    event_id TEXT NOT NULL,
    url TEXT NOT NULL,
    lane TEXT NOT NULL,
    body BLOB NOT NULL,
    due_at INTEGER,
    attempts INTEGER NOT NULL,
    error TEXT NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
CREATE INDEX delivery_due ON delivery (lane, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX delivery_given_up ON delivery (updated_at) WHERE due_at IS NULL;

-- The last tick for which each schedule has submitted its jobs.
CREATE TABLE schedule (
    name TEXT PRIMARY KEY,
    tick INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- 'archived_…': what was ever removed from the journal: whole histories, rows, and the highest number among them.
INSERT INTO setting (name, value) VALUES
    ('archived_histories', 0),
    ('archived_rows', 0),
    ('archived_upto', 0),
    ('blocked', 0),
    ('folded', 0),
    ('store_id', lower(hex(randomblob(16))));

-- Triggers keep journal and tags in step with the job's row, so no statement can forget them.
CREATE TRIGGER job_inserted AFTER INSERT ON job BEGIN
    INSERT INTO journal (
        recorded_at, job_seq, job_id, n, type, verb, from_status, status, attempt, retry_count, failures,
        max_attempts, priority, key, tags, idempotency_key, assignee_id, due_at, error_category, error_code,
        error_message, progress, after, after_any, parent_id)
    VALUES (
        NEW.updated_at, NEW.seq, NEW.id, NEW.n, NEW.type, NEW.verb, NULL, NEW.status, NEW.attempt,
        NEW.retry_count, NEW.failures, NEW.max_attempts, NEW.priority, NEW.key, NEW.tags, NEW.idempotency_key,
        NEW.assignee_id, NEW.due_at, NEW.error_category, NEW.error_code, NEW.error_message, NEW.progress,
        NEW.after, NEW.after_any, NEW.parent_id);
END;

CREATE TRIGGER job_changed AFTER UPDATE OF n ON job BEGIN
    INSERT INTO journal (
        recorded_at, job_seq, job_id, n, type, verb, from_status, status, attempt, retry_count, failures,
        max_attempts, priority, key, tags, idempotency_key, assignee_id, due_at, error_category, error_code,
        error_message, progress, ready_at, started_at)
    VALUES (
        NEW.updated_at, NEW.seq, NEW.id, NEW.n, NEW.type, NEW.verb, OLD.status, NEW.status, NEW.attempt,
        NEW.retry_count, NEW.failures, NEW.max_attempts, NEW.priority, NEW.key, NEW.tags, NEW.idempotency_key,
        NEW.assignee_id, NEW.due_at, NEW.error_category, NEW.error_code, NEW.error_message, NEW.progress,
        CASE WHEN OLD.status IN ('running', 'cancelling') AND NEW.status NOT IN ('running', 'cancelling')
            THEN OLD.attempt_ready_at END,
        CASE WHEN OLD.status IN ('running', 'cancelling') AND NEW.status NOT IN ('running', 'cancelling')
            THEN OLD.attempt_started_at END);
END;

CREATE TRIGGER job_tagged AFTER INSERT ON job WHEN NEW.tags <> '[]' BEGIN
    INSERT INTO job_tag (tag, seq) SELECT value, NEW.seq FROM json_each(NEW.tags);
    INSERT INTO ready_tag (tag, priority, order_at, seq)
    SELECT value, NEW.priority, NEW.order_at, NEW.seq FROM json_each(NEW.tags) WHERE NEW.gate = 0;
END;

CREATE TRIGGER job_retagged AFTER UPDATE OF tags ON job WHEN OLD.tags <> NEW.tags BEGIN
    DELETE FROM job_tag WHERE (tag, seq) IN (SELECT value, OLD.seq FROM json_each(OLD.tags));
    INSERT INTO job_tag (tag, seq) SELECT value, NEW.seq FROM json_each(NEW.tags);
END;

CREATE TRIGGER job_moved AFTER UPDATE OF gate, priority, order_at, tags ON job
WHEN (OLD.tags <> '[]' OR NEW.tags <> '[]') AND (OLD.gate = 0 OR NEW.gate = 0) BEGIN
    DELETE FROM ready_tag
    WHERE (tag, priority, order_at, seq) IN (
        SELECT value, OLD.priority, OLD.order_at, OLD.seq FROM json_each(OLD.tags) WHERE OLD.gate = 0);
    INSERT INTO ready_tag (tag, priority, order_at, seq)
    SELECT value, NEW.priority, NEW.order_at, NEW.seq FROM json_each(NEW.tags) WHERE NEW.gate = 0;
END;

CREATE TRIGGER job_deleted AFTER DELETE ON job BEGIN
    DELETE FROM job_tag WHERE (tag, seq) IN (SELECT value, OLD.seq FROM json_each(OLD.tags));
    DELETE FROM payload WHERE seq = OLD.seq;
    DELETE FROM result WHERE seq = OLD.seq;
    DELETE FROM checkpoint WHERE seq = OLD.seq;
    DELETE FROM output WHERE seq = OLD.seq;
    DELETE FROM edge WHERE on_seq = OLD.seq;
    DELETE FROM edge WHERE job_seq = OLD.seq;
    DELETE FROM idempotency
    WHERE type = OLD.type AND key = OLD.idempotency_key AND job_id = OLD.id;
END;
