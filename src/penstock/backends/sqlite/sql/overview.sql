-- The version of the schema, whether the queue is blocked, and how far the journal is folded and written.
SELECT
    (SELECT max(number) FROM migration),
    (SELECT value FROM setting WHERE name = 'blocked'),
    (SELECT value FROM setting WHERE name = 'folded'),
    (SELECT max(seq) FROM journal)
