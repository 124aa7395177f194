-- As enqueue, for a few plain jobs at once: answers whether the queue is open, the ids stored, and the time.
WITH new AS MATERIALIZED (
    SELECT
        nextval('{schema}.job_number') AS seq, control.now, {plain_fields}, payload
    FROM (SELECT COALESCE(%(now)s::bigint, {now}) AS now FROM {schema}.control WHERE NOT blocked) AS control
    CROSS JOIN json_to_recordset(%(rows)s::json) AS r ({plain_typed}, payload text)
),
stored AS (
    INSERT INTO {schema}.job ({plain_columns}, late, token)
    SELECT {plain_new}, %(is_long)s, %(token)s::bigint
    FROM new
    ON CONFLICT (id) DO NOTHING
    RETURNING seq, id, type, tags, priority, max_attempts, order_at, updated_at, gate
),
{tagging}
paid AS (
    INSERT INTO {schema}.payload (seq, data)
    SELECT seq, decode(new.payload, 'base64')
    FROM stored
    JOIN new USING (seq)
    WHERE new.payload <> ''
),
journaled AS (
    {journal_plain}
    ORDER BY seq
)
SELECT NOT blocked, (SELECT COALESCE(array_agg(id), '{}') FROM stored), (SELECT max(now) FROM new)
FROM {schema}.control
