-- oldest code: 1
-- Who reads the journal and how far they have come: what none of them needs any more may be archived.

CREATE TABLE consumer (
    name TEXT PRIMARY KEY,
    seq INTEGER NOT NULL,
    holder TEXT,
    held_until INTEGER,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What was ever removed: histories begun, rows, and the highest number among them.
INSERT INTO setting (name, value) VALUES
    ('archived_histories', 0),
    ('archived_rows', 0),
    ('archived_upto', 0);
