-- The transaction's time, whether streams must not serve the assignee now, and whether a delayed job is due that was not
-- promoted yet (from `since` on; null: not checked). Then nothing is claimed, and the caller promotes the due ones first.
moment AS MATERIALIZED (
    SELECT
        clock.now,
        COALESCE(%(since)s::bigint > clock.now, false)
        OR EXISTS (
            SELECT FROM generate_series(0, 4) AS level
            CROSS JOIN LATERAL (
                SELECT FROM {schema}.job
                WHERE job.gate = 1
                  AND job.priority = level
                  AND job.due_at <= clock.now
                  AND job.due_at > %(since)s::bigint
                ORDER BY job.due_at
                LIMIT 1
            ) AS one
        ) AS is_due,
        %(pushed)s::boolean
            AND EXISTS (SELECT FROM {schema}.unresponsive WHERE assignee_id = %(assignee_id)s::text) AS is_withheld
    FROM (SELECT COALESCE(%(now)s::bigint, {now}) AS now OFFSET 0) AS clock
),
