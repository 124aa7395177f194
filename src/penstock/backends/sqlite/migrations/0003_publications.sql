-- oldest code: 1
-- The last batch that each writer of numbered batches has published, so that none is published twice.

CREATE TABLE publication (
    writer TEXT PRIMARY KEY,
    batch INTEGER NOT NULL,
    published_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
