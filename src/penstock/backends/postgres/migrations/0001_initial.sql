-- oldest code: 1
--
-- All times are bigint microseconds since 1970. Text that is compared is COLLATE "C", so that order and equality are
-- the same on every server. Bytes of a job are stored outside `job`, because each status change rewrites its row.

CREATE SEQUENCE {schema}.job_number AS bigint CACHE 1;

CREATE TABLE {schema}.job (
    seq                bigint   NOT NULL,
    order_at           bigint   NOT NULL,
    created_at         bigint   NOT NULL,
    updated_at         bigint   NOT NULL,
    priority           smallint NOT NULL DEFAULT 2,
    closed             smallint NOT NULL DEFAULT 0,
    gate               smallint,
    fan                smallint NOT NULL DEFAULT 0,
    held               smallint NOT NULL DEFAULT 0,
    progress           smallint NOT NULL DEFAULT 0,
    late               boolean  NOT NULL DEFAULT false,
    unmet              integer  NOT NULL DEFAULT 0,
    depth              integer  NOT NULL DEFAULT 1,
    n                  integer  NOT NULL DEFAULT 1,
    attempt            integer  NOT NULL DEFAULT 0,
    lost_attempt       integer,
    retry_count        integer  NOT NULL DEFAULT 0,
    failures           integer  NOT NULL DEFAULT 0,
    id                 text     COLLATE "C" NOT NULL,
    type               text     COLLATE "C" NOT NULL,
    status             text     COLLATE "C" NOT NULL DEFAULT 'initial_pending',
    tags               text     COLLATE "C" NOT NULL DEFAULT '[]',
    after              text     COLLATE "C" NOT NULL DEFAULT '[]',
    after_any          text     COLLATE "C" NOT NULL DEFAULT '[]',
    verb               text     COLLATE "C" NOT NULL DEFAULT 'enqueue',
    error_message      text     COLLATE "C" NOT NULL DEFAULT '',
    from_status        text     COLLATE "C",
    key                text     COLLATE "C",
    max_attempts       integer,
    retry              text     COLLATE "C",
    execution          bigint,
    visibility         bigint,
    lifetime           bigint,
    assignee_id        text     COLLATE "C",
    assigned_at        bigint,
    owner              text     COLLATE "C",
    lease_until        bigint,
    deadline_at        bigint,
    expires_at         bigint,
    run_at             bigint,
    due_at             bigint,
    ready_at           bigint,
    attempt_ready_at   bigint,
    started_at         bigint,
    attempt_started_at bigint,
    last_retry_at      bigint,
    finalized_at       bigint,
    description        text     COLLATE "C",
    error_category     text     COLLATE "C",
    error_code         text     COLLATE "C",
    correlation_id     text     COLLATE "C",
    callback_url       text     COLLATE "C",
    idempotency_key    text     COLLATE "C",
    parent_id          text     COLLATE "C",
    redrive_of         text     COLLATE "C",
    trace              text     COLLATE "C", -- the trace context of the submitting process
    -- A random number of the call that stored a plain job. A call that lost its connection recognises its own rows by it
    -- when it retries: the id alone may belong to another job.
    token              bigint,
    uniqueness         text     COLLATE "C", -- how long idempotency_key is reserved: NULL or 'while_unfinished'
    -- When a late job became ready. A claim reads only late jobs of its types that arrived since it last read the whole
    -- ready set. The default is later than any time, for statements that leave it out.
    late_at            bigint   NOT NULL DEFAULT 4611686018427387904,
    CONSTRAINT job_pkey PRIMARY KEY (seq),
    CONSTRAINT job_id_key UNIQUE (id),
    CONSTRAINT job_ends_once CHECK ((closed = 1) = (finalized_at IS NOT NULL)),
    CONSTRAINT job_gate_is_open CHECK (gate IS NULL OR closed = 0)
) WITH (
    fillfactor = 80,
    -- Every job is rewritten at least twice, so dead rows accumulate as fast as jobs arrive. A larger scale factor would
    -- let them pile up beside millions of finished jobs; a factor of 0 would scan those jobs' indexes every minute.
    autovacuum_vacuum_scale_factor = 0.002,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 1000
);

-- The ready set: exactly the jobs that may be claimed. `gate` is never negative, so both conditions mean `gate = 0`. They
-- differ so that exactly one index matches a claim: with statistics from a moment when nothing was ready both looked
-- alike, and a claim by type walked through the ready jobs of all types.
CREATE INDEX job_ready ON {schema}.job (priority, order_at, seq) WHERE gate >= 0 AND gate < 1;
CREATE INDEX job_ready_type ON {schema}.job (type, priority, order_at, seq) WHERE gate <= 0;
-- Jobs that entered the ready set behind its tail; a claim that starts at a floor reads them as well.
CREATE INDEX job_ready_late ON {schema}.job (late_at, type) WHERE gate = 0 AND late;
CREATE INDEX job_delayed ON {schema}.job (priority, due_at, seq) WHERE gate = 1;
-- Jobs that wait for their next attempt, by type; released jobs wait too, but did not fail. No other index separates
-- them from delayed jobs.
CREATE INDEX job_retrying ON {schema}.job (type, seq) WHERE status IN ('failed_retry', 'unknown_retry');
CREATE INDEX job_released ON {schema}.job (type, seq) WHERE status = 'failed_retry' AND verb = 'release';

CREATE INDEX job_key ON {schema}.job (key, seq) WHERE key IS NOT NULL AND closed = 0;
CREATE INDEX job_key_turn ON {schema}.job (key, seq)
    WHERE key IS NOT NULL AND closed = 0 AND (gate IS NULL OR gate <> 2);
-- Enforces that at most one job of a key is in flight.
CREATE UNIQUE INDEX job_key_in_flight ON {schema}.job (key)
    WHERE key IS NOT NULL AND status IN ('running', 'cancelling');

-- Jobs in flight by the time of their claim. Upkeep searches lost and overdue jobs here: an index for each of owner,
-- lease and deadline would have to be written by every claim. While a session holds an old snapshot, every job that was
-- ever in flight keeps an entry; upkeep and heartbeats start behind those that they have already seen.
CREATE INDEX job_in_flight ON {schema}.job (assigned_at, assignee_id, seq) WHERE status IN ('running', 'cancelling');
CREATE INDEX job_expiry ON {schema}.job (expires_at) WHERE expires_at IS NOT NULL AND closed = 0;
CREATE INDEX job_ended ON {schema}.job (status, finalized_at) WHERE closed = 1;
-- Answers whether any job has a callback; in most stores none has.
CREATE INDEX job_callback ON {schema}.job (seq) WHERE callback_url IS NOT NULL;

CREATE TABLE {schema}.payload (seq bigint PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE {schema}.result (seq bigint PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE {schema}.checkpoint (seq bigint PRIMARY KEY, data bytea NOT NULL) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- What the latest attempt has printed.
CREATE TABLE {schema}.output (seq bigint PRIMARY KEY, data bytea NOT NULL) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE {schema}.job_tag (tag text COLLATE "C" NOT NULL, seq bigint NOT NULL, PRIMARY KEY (tag, seq));

-- The ready set by tag.
CREATE TABLE {schema}.ready_tag (
    tag      text     COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    order_at bigint   NOT NULL,
    seq      bigint   NOT NULL,
    PRIMARY KEY (tag, priority, order_at, seq)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.1
);

-- Dependencies: job_seq waits for on_seq. Spawned jobs (kind 'spawned'): job_seq is the parent of on_seq.
CREATE TABLE {schema}.edge (
    on_seq  bigint NOT NULL,
    job_seq bigint NOT NULL,
    kind    text   COLLATE "C" NOT NULL,
    PRIMARY KEY (on_seq, job_seq, kind)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX edge_job ON {schema}.edge (job_seq);

CREATE TABLE {schema}.idempotency (
    type       text   COLLATE "C" NOT NULL,
    key        text   COLLATE "C" NOT NULL,
    job_id     text   COLLATE "C" NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (type, key)
);
CREATE INDEX idempotency_expiry ON {schema}.idempotency (expires_at);

-- Processes that own claimed jobs while their heartbeats arrive; `intakes` is what each of them claims. A heartbeat
-- changes one unindexed column, so with room on the page it writes no index.
CREATE TABLE {schema}.owner (
    id        text   COLLATE "C" PRIMARY KEY,
    host      text   COLLATE "C" NOT NULL,
    pid       bigint NOT NULL,
    started   text   COLLATE "C" NOT NULL,
    beat_at   bigint NOT NULL,
    opened_at bigint,
    intakes   text   COLLATE "C" NOT NULL DEFAULT '[]'
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Assignees that were declared unresponsive and have sent no heartbeat since.
CREATE TABLE {schema}.unresponsive (assignee_id text COLLATE "C" PRIMARY KEY, marked_at bigint NOT NULL);

-- Writers append to the inbox in the transaction of the change. Its id is drawn before the commit and so does not follow
-- commit order; readers and upkeep move committed rows to `journal` and number them there (see journal.py).
CREATE TABLE {schema}.journal_inbox (
    id              bigint   GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    job_seq         bigint   NOT NULL,
    recorded_at     bigint   NOT NULL,
    n               integer  NOT NULL,
    attempt         integer  NOT NULL,
    retry_count     integer  NOT NULL,
    failures        integer  NOT NULL,
    priority        smallint NOT NULL,
    progress        smallint NOT NULL,
    job_id          text     COLLATE "C" NOT NULL,
    type            text     COLLATE "C" NOT NULL,
    verb            text     COLLATE "C" NOT NULL,
    status          text     COLLATE "C" NOT NULL,
    tags            text     COLLATE "C" NOT NULL,
    error_message   text     COLLATE "C" NOT NULL DEFAULT '',
    from_status     text     COLLATE "C",
    max_attempts    integer,
    key             text     COLLATE "C",
    idempotency_key text     COLLATE "C",
    assignee_id     text     COLLATE "C",
    due_at          bigint,
    error_category  text     COLLATE "C",
    error_code      text     COLLATE "C",
    after           text     COLLATE "C",
    after_any       text     COLLATE "C",
    parent_id       text     COLLATE "C",
    ready_at        bigint,
    started_at      bigint,
    tags_before     text     COLLATE "C"
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE {schema}.journal (
    seq             bigint   PRIMARY KEY,
    job_seq         bigint   NOT NULL,
    recorded_at     bigint   NOT NULL,
    n               integer  NOT NULL,
    attempt         integer  NOT NULL,
    retry_count     integer  NOT NULL,
    failures        integer  NOT NULL,
    priority        smallint NOT NULL,
    progress        smallint NOT NULL,
    job_id          text     COLLATE "C" NOT NULL,
    type            text     COLLATE "C" NOT NULL,
    verb            text     COLLATE "C" NOT NULL,
    status          text     COLLATE "C" NOT NULL,
    tags            text     COLLATE "C" NOT NULL,
    error_message   text     COLLATE "C" NOT NULL DEFAULT '',
    from_status     text     COLLATE "C",
    max_attempts    integer,
    key             text     COLLATE "C",
    idempotency_key text     COLLATE "C",
    assignee_id     text     COLLATE "C",
    due_at          bigint,
    error_category  text     COLLATE "C",
    error_code      text     COLLATE "C",
    after           text     COLLATE "C",
    after_any       text     COLLATE "C",
    parent_id       text     COLLATE "C",
    ready_at        bigint,
    started_at      bigint,
    tags_before     text     COLLATE "C",
    CONSTRAINT journal_step UNIQUE (job_seq, n)
);

-- Counts per tag and status up to the journal row `fold.seq`. Tag '' counts all jobs; status '' counts retries.
CREATE TABLE {schema}.counter (
    tag    text   COLLATE "C" NOT NULL,
    status text   COLLATE "C" NOT NULL,
    amount bigint NOT NULL,
    PRIMARY KEY (tag, status)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
-- Counts of zero, for upkeep to delete.
CREATE INDEX counter_empty ON {schema}.counter (tag) WHERE amount = 0;
-- Counts per type and status up to `fold.seq`; `entered` is how often any job has entered the status.
CREATE TABLE {schema}.type_counter (
    type    text   COLLATE "C" NOT NULL,
    status  text   COLLATE "C" NOT NULL,
    jobs    bigint NOT NULL,
    entered bigint NOT NULL,
    PRIMARY KEY (type, status)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE {schema}.fold (only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), seq bigint NOT NULL)
    WITH (fillfactor = 50);
INSERT INTO {schema}.fold (seq) VALUES (0);

-- When a process last claimed the upkeep of the store; and the last pass: its time, the gap to the pass before it, and
-- from when on missing heartbeats count again.
CREATE TABLE {schema}.upkeep (
    only_row    boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    taken_at    bigint  NOT NULL,
    passed_at   bigint,
    gap         bigint  NOT NULL DEFAULT 0,
    judges_from bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO {schema}.upkeep (taken_at) VALUES (0);

-- `numbered`: the highest journal number ever assigned, even if its row was archived. `store_id`: identifies the store
-- wherever it is moved to; readers of several stores name their rows by it.
CREATE TABLE {schema}.control (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    blocked  boolean NOT NULL DEFAULT false,
    numbered bigint  NOT NULL DEFAULT 0,
    store_id text    COLLATE "C" NOT NULL DEFAULT replace(gen_random_uuid()::text, '-', '')
) WITH (fillfactor = 50);
INSERT INTO {schema}.control DEFAULT VALUES;

-- Readers of the journal and their positions: rows that every consumer has read may be archived.
CREATE TABLE {schema}.consumer (
    name       text   COLLATE "C" PRIMARY KEY,
    seq        bigint NOT NULL,
    holder     text   COLLATE "C",
    held_until bigint,
    updated_at bigint NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- What was ever removed from the journal: whole histories, rows, and the highest number among them.
CREATE TABLE {schema}.archive (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    histories bigint  NOT NULL DEFAULT 0,
    rows      bigint  NOT NULL DEFAULT 0,
    upto      bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO {schema}.archive DEFAULT VALUES;

-- The last batch that each writer of numbered batches has published, so that none is published twice.
CREATE TABLE {schema}.publication (
    writer       text   COLLATE "C" PRIMARY KEY,
    batch        bigint NOT NULL,
    published_at bigint NOT NULL
) WITH (fillfactor = 50);

-- Callbacks to deliver, one row per finished job; due_at is NULL once delivery was given up.
CREATE TABLE {schema}.delivery (
    seq        bigint  PRIMARY KEY, -- of the journal row that records the end of the job
    event_id   text    COLLATE "C" NOT NULL,
    url        text    COLLATE "C" NOT NULL,
    lane       text    COLLATE "C" NOT NULL,
    body       bytea   NOT NULL,
    due_at     bigint,
    attempts   integer NOT NULL,
    error      text    COLLATE "C" NOT NULL,
    updated_at bigint  NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX delivery_due ON {schema}.delivery (lane, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX delivery_given_up ON {schema}.delivery (updated_at) WHERE due_at IS NULL;

-- The last tick for which each schedule has submitted its jobs.
CREATE TABLE {schema}.schedule (
    name       text   COLLATE "C" PRIMARY KEY,
    tick       bigint NOT NULL,
    updated_at bigint NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
