-- oldest code: 1
--
-- The last batch that each writer of numbered batches has published, so that none is published twice.
CREATE TABLE {schema}.publication (
    writer       text   COLLATE "C" PRIMARY KEY,
    batch        bigint NOT NULL,
    published_at bigint NOT NULL
) WITH (fillfactor = 50);
