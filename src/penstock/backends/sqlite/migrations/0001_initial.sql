-- oldest code: 1
-- The first schema. Insertion numbers (job.seq) are given by the writer, above every one in job and journal:
-- AUTOINCREMENT would make each insert twice as slow. Times are integer microseconds since 1970; lists of strings are JSON arrays.

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
    attempt_ready_at INTEGER,  -- when the latest attempt's job had become ready; ready_at may be the next one's
    -- CASE and not IN: SQLite builds a table for a list in every statement, which doubles the cost of an insert.
    CHECK (closed IS CASE status
        WHEN 'initial_pending' THEN 0 WHEN 'running' THEN 0 WHEN 'completed' THEN 1 WHEN 'failed_retry' THEN 0
        WHEN 'unknown_retry' THEN 0 WHEN 'cancelling' THEN 0 WHEN 'failed' THEN 1 WHEN 'dead_letter' THEN 1
        WHEN 'stopped' THEN 1 WHEN 'unscheduled' THEN 1 WHEN 'unknown_stopped' THEN 1 END),
    CHECK (closed = 0 OR (finalized_at IS NOT NULL AND gate IS NULL))
) STRICT;

-- The ready set: exactly what a claim may take, in the order it takes it.
CREATE INDEX job_ready ON job (priority, order_at, seq) WHERE gate = 0;
CREATE INDEX job_ready_type ON job (type, priority, order_at, seq) WHERE gate = 0;
CREATE INDEX job_delayed ON job (priority, due_at, seq) WHERE gate = 1;

CREATE INDEX job_key ON job (key, seq) WHERE key IS NOT NULL AND closed = 0;
-- The few of a key that are not merely waiting: in flight, ready, delayed, held. A key may have very many that are.
CREATE INDEX job_key_turn ON job (key, seq) WHERE key IS NOT NULL AND closed = 0 AND gate IS NOT 2;
-- The net under the rule that one job of a key is in flight at a time.
CREATE UNIQUE INDEX job_key_in_flight ON job (key) WHERE key IS NOT NULL AND status IN ('running', 'cancelling');

CREATE INDEX job_assignee ON job (assignee_id, seq) WHERE status IN ('running', 'cancelling');
CREATE INDEX job_owner ON job (owner) WHERE owner IS NOT NULL;
CREATE INDEX job_lease ON job (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX job_deadline ON job (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX job_lifetime ON job (expires_at) WHERE expires_at IS NOT NULL AND closed = 0;
CREATE INDEX job_ended ON job (status, finalized_at) WHERE closed = 1;

-- Blobs lie outside the row that status changes rewrite.
CREATE TABLE payload (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE result (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE checkpoint (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;

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

-- What still holds jobs back: job_seq waits for on_seq; and what a job has spawned: on_seq is of job_seq.
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

-- Processes that hold jobs while they beat.
CREATE TABLE owner (
    id TEXT PRIMARY KEY,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    started TEXT NOT NULL,
    beat_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE setting (
    name TEXT PRIMARY KEY,
    value ANY
) STRICT, WITHOUT ROWID;

-- Every change, in order. The row with the highest seq is never archived, so that no number is given twice.
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

-- Counts per tag and status ('' is every job, or the retries of all statuses), up to setting 'folded'.
CREATE TABLE stat (
    tag TEXT NOT NULL,
    status TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    PRIMARY KEY (tag, status)
) STRICT, WITHOUT ROWID;

-- What each journal row does to the counts. An update may have changed the tags, so it takes away what the row
-- before it gave.
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

INSERT INTO setting (name, value) VALUES
    ('blocked', 0),
    ('folded', 0),
    ('store_id', lower(hex(randomblob(16))));

-- Journal and tags follow the job's row by trigger, so that no statement can forget them.
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
    DELETE FROM edge WHERE on_seq = OLD.seq;
    DELETE FROM edge WHERE job_seq = OLD.seq;
    DELETE FROM idempotency
    WHERE type = OLD.type AND key = OLD.idempotency_key AND job_id = OLD.id;
END;
