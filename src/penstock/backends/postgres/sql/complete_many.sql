-- The jobs to complete, locked in the order of their numbers, each with the time when it was.
-- None of them if one has a key or is waited for: then keys come first, and may have to be waited for. Once those are
-- held (`are_held`, with all rows), the simple ones among them.
-- OFFSET is a fence for the planner: each job is looked up by its id, never by going through all that are in flight.
named AS MATERIALIZED (
    SELECT job.seq, fence.attempt, job.key IS NULL AND job.fan = 0 AS is_simple
    FROM json_each_text(%(fences)s::json) AS fence (id, attempt)
    CROSS JOIN LATERAL (SELECT seq, key, fan FROM {schema}.job WHERE job.id = fence.id OFFSET 0) AS job
    ORDER BY job.seq
),
found AS MATERIALIZED (
    SELECT job.seq, job.owner, {now} AS locked_at
    FROM named
    CROSS JOIN LATERAL (
        SELECT seq, status, attempt, owner
        FROM {schema}.job
        WHERE job.seq = named.seq AND job.key IS NULL AND job.fan = 0
        OFFSET 0
        FOR UPDATE
    ) AS job
    WHERE (%(are_held)s OR (SELECT bool_and(named.is_simple) FROM named))
      AND job.status IN ('running', 'cancelling')
      AND (named.attempt IS NULL OR job.attempt = named.attempt::bigint)
),
