-- oldest code: 1
-- What has to be told to callback urls, one row for each end of a job; due_at is NULL once it was given up.

CREATE TABLE delivery (
    seq INTEGER PRIMARY KEY,  -- of the journal row that tells of the end
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

-- Whether any job has somebody to be told; most stores have none.
CREATE INDEX job_callback ON job (seq) WHERE callback_url IS NOT NULL;

-- Up to which tick each schedule has had its jobs.
CREATE TABLE schedule (
    name TEXT PRIMARY KEY,
    tick INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
