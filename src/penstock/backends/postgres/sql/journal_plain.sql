-- The first journal row of plain jobs just stored: shorter than journal_new, since most of it is constant or NULL.
INSERT INTO {schema}.journal_inbox ({plain_entry})
SELECT {plain_entry_values}
FROM stored
