-- As complete_many, for a single job.
found AS MATERIALIZED (
    SELECT job.seq, job.owner, {now} AS locked_at
    FROM json_each_text(%(fences)s::json) AS fence (id, attempt)
    CROSS JOIN LATERAL (
        SELECT seq, status, attempt, owner
        FROM {schema}.job
        WHERE job.id = fence.id AND job.key IS NULL AND job.fan = 0
        OFFSET 0
        FOR UPDATE
    ) AS job
    WHERE job.status IN ('running', 'cancelling')
      AND (fence.attempt IS NULL OR job.attempt = fence.attempt::bigint)
),
