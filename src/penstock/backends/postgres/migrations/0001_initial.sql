-- oldest code: 1
--
-- All times are bigint microseconds since 1970. Text that is compared is COLLATE "C", so that order and equality are
-- the same on every server. Payload, result and checkpoint lie outside `job`, because each status change rewrites it.

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
    CONSTRAINT job_pkey PRIMARY KEY (seq),
    CONSTRAINT job_id_key UNIQUE (id),
    CONSTRAINT job_ends_once CHECK ((closed = 1) = (finalized_at IS NOT NULL)),
    CONSTRAINT job_gate_is_open CHECK (gate IS NULL OR closed = 0)
) WITH (
    fillfactor = 80,
    -- Every job is rewritten at least twice, so dead rows come as fast as jobs. A share of the table would let them
    -- pile up beside millions of finished jobs; none at all would scan those jobs' indexes once a minute.
    autovacuum_vacuum_scale_factor = 0.002,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 1000
);

-- The ready set: exactly what claims look through.
CREATE INDEX job_ready ON {schema}.job (priority, order_at, seq) WHERE gate = 0;
CREATE INDEX job_ready_type ON {schema}.job (type, priority, order_at, seq) WHERE gate = 0;
-- Ready jobs that entered the ready set behind its tail; while there is one, claims may not start at a floor.
CREATE INDEX job_ready_late ON {schema}.job (seq) WHERE gate = 0 AND late;
CREATE INDEX job_delayed ON {schema}.job (priority, due_at, seq) WHERE gate = 1;

CREATE INDEX job_key ON {schema}.job (key, seq) WHERE key IS NOT NULL AND closed = 0;
CREATE INDEX job_key_turn ON {schema}.job (key, seq)
    WHERE key IS NOT NULL AND closed = 0 AND (gate IS NULL OR gate <> 2);
-- The net below the rule that one job of a key is in flight at a time.
CREATE UNIQUE INDEX job_key_in_flight ON {schema}.job (key)
    WHERE key IS NOT NULL AND status IN ('running', 'cancelling');

CREATE INDEX job_in_flight ON {schema}.job (assignee_id, seq) WHERE status IN ('running', 'cancelling');
-- Lost and overdue jobs are looked for among those in flight, of which there are only as many as workers hold; an index
-- for each of owner, lease and deadline would have to be written by every claim.
CREATE INDEX job_expiry ON {schema}.job (expires_at) WHERE expires_at IS NOT NULL AND closed = 0;
CREATE INDEX job_ended ON {schema}.job (status, finalized_at) WHERE closed = 1;

CREATE TABLE {schema}.payload (seq bigint PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE {schema}.result (seq bigint PRIMARY KEY, data bytea NOT NULL);
CREATE TABLE {schema}.checkpoint (seq bigint PRIMARY KEY, data bytea NOT NULL) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE {schema}.job_tag (tag text COLLATE "C" NOT NULL, seq bigint NOT NULL, PRIMARY KEY (tag, seq));

-- The ready set once more, by tag.
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

-- Beats change one unindexed column, so with room on the page they cost no index work.
CREATE TABLE {schema}.owner (
    id      text   COLLATE "C" PRIMARY KEY,
    host    text   COLLATE "C" NOT NULL,
    pid     bigint NOT NULL,
    started text   COLLATE "C" NOT NULL,
    beat_at bigint NOT NULL
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Writers append to the inbox in the transaction of the change. Its id is drawn before the commit and so says nothing
-- about the order of commits; `journal.seq` is given to committed rows by whoever reads or maintains (see journal.py).
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

-- Jobs by status, for each tag and (tag '') for all, as the journal says up to `fold.seq`. Status '' holds retries.
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
-- Counts that have come to nothing, to be swept.
CREATE INDEX counter_empty ON {schema}.counter (tag) WHERE amount = 0;
CREATE TABLE {schema}.fold (only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), seq bigint NOT NULL)
    WITH (fillfactor = 50);
INSERT INTO {schema}.fold (seq) VALUES (0);

-- When somebody last took it upon themselves to maintain the store.
CREATE TABLE {schema}.upkeep (only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row), taken_at bigint NOT NULL)
    WITH (fillfactor = 50);
INSERT INTO {schema}.upkeep (taken_at) VALUES (0);

-- `numbered`: no journal row gets a number at or below this one, even if the rows themselves are gone.
CREATE TABLE {schema}.control (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    blocked  boolean NOT NULL DEFAULT false,
    numbered bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO {schema}.control DEFAULT VALUES;
