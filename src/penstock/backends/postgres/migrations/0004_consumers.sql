-- oldest code: 1
--
-- Who reads the journal and how far they have come: what none of them needs any more may be archived.
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

-- What was ever removed from the journal: histories begun, rows, and the highest number among them.
CREATE TABLE {schema}.archive (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    histories bigint  NOT NULL DEFAULT 0,
    rows      bigint  NOT NULL DEFAULT 0,
    upto      bigint  NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO {schema}.archive DEFAULT VALUES;
