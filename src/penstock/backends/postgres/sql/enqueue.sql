-- Store one plain job, unless the queue is blocked or its id is stored already. Answers how many passed each of
-- the two, and the time.
WITH new AS MATERIALIZED (
    SELECT nextval('{schema}.job_number') AS seq, COALESCE(%(now)s::bigint, {now}) AS now
    FROM {schema}.control
    WHERE NOT blocked
),
stored AS (
    INSERT INTO {schema}.job ({plain_columns}, token)
    SELECT {plain_given}, %(token)s::bigint
    FROM new
    ON CONFLICT (id) DO NOTHING
    RETURNING seq, id, type, tags, priority, max_attempts, order_at, updated_at, gate
),
{tagging}
paid AS (
    INSERT INTO {schema}.payload (seq, data)
    SELECT seq, %(payload)s::bytea
    FROM stored
    WHERE octet_length(%(payload)s::bytea) > 0
),
journaled AS (
    {journal_plain}
)
SELECT (SELECT count(*) FROM new), (SELECT count(*) FROM stored), (SELECT now FROM new)
