-- As enqueue, for a few plain jobs at once: answers whether the queue is open, the ids stored, and the time.
WITH new AS MATERIALIZED (
    SELECT
        nextval('{schema}.job_number') AS seq, control.now,
        id, type, tags, priority, max_attempts, retry, execution, visibility, lifetime, payload
    FROM (SELECT COALESCE(%(now)s::bigint, {now}) AS now FROM {schema}.control WHERE NOT blocked) AS control
    CROSS JOIN json_to_recordset(%(rows)s::json) AS r (
        id text, type text, tags text, priority smallint, max_attempts integer, retry text, execution bigint,
        visibility bigint, lifetime bigint, payload text)
),
stored AS (
    INSERT INTO {schema}.job (
        seq, id, type, tags, priority, max_attempts, retry, execution, visibility, lifetime,
        order_at, created_at, updated_at, ready_at, expires_at, gate, late, token)
    SELECT
        seq, id, type, tags, priority, max_attempts, retry, execution, visibility, lifetime,
        now, now, now, now, now + lifetime, 0, %(is_long)s, %(token)s::bigint
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
