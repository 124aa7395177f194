-- What every transaction begins with: the time, its xid, whether the queue is blocked, and whether a delayed job is due
-- that no pass has moved into the ready set (from `since` on).
SELECT
    moment.now,
    pg_current_xact_id()::text,
    (SELECT blocked FROM {schema}.control),
    EXISTS (
        SELECT FROM generate_series(0, 4) AS level
        CROSS JOIN LATERAL (
            SELECT FROM {schema}.job
            WHERE job.gate = 1 AND job.priority = level AND job.due_at <= moment.now AND job.due_at > {since}::bigint
            ORDER BY job.due_at
            LIMIT 1
        ) AS one
    )
FROM (SELECT COALESCE({own_now}::bigint, {now}) AS now OFFSET 0) AS moment
