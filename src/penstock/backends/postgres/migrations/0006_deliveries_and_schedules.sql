-- oldest code: 1
--
-- What has to be told to callback urls, one row for each end of a job; due_at is null once it was given up.
CREATE TABLE {schema}.delivery (
    seq        bigint  PRIMARY KEY, -- of the journal row that tells of the end
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

-- Whether any job has somebody to be told; most stores have none.
CREATE INDEX job_callback ON {schema}.job (seq) WHERE callback_url IS NOT NULL;

-- Up to which tick each schedule has had its jobs.
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
