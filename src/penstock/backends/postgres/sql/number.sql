-- Give committed journal rows their numbers: dense, in the order of the inbox, so that a job's rows keep theirs.
-- Runs under the numbering lock, acquired by an earlier statement: this one's snapshot sees what the last holder did.
WITH wanted AS MATERIALIZED (
    SELECT id
    FROM {schema}.journal_inbox
    WHERE id > {inbox_start}
    ORDER BY id
    LIMIT %(limit)s
),
moved AS (
    DELETE FROM {schema}.journal_inbox
    USING wanted
    WHERE journal_inbox.id = wanted.id
    RETURNING journal_inbox.id, {inbox_columns}
),
numbered AS (
    INSERT INTO {schema}.journal (seq, {plain_inbox_columns})
    SELECT
        GREATEST(
            (SELECT COALESCE(max(seq), 0) FROM {schema}.journal),
            (SELECT numbered FROM {schema}.control)
        ) + row_number() OVER (ORDER BY id),
        {plain_inbox_columns}
    FROM moved
    RETURNING seq
)
SELECT
    (SELECT count(*) FROM numbered),
    (SELECT max(id) FROM wanted),
    pg_current_snapshot()::text,
    pg_current_xact_id()::text
