-- For each key its first unfinished job, and every unfinished one that does not wait for its turn.
WITH member AS MATERIALIZED (
    SELECT first.seq
    FROM unnest(%(keys)s::text[]) AS wanted (key)
    CROSS JOIN LATERAL (
        SELECT job.seq
        FROM {schema}.job
        WHERE job.key = wanted.key AND job.key IS NOT NULL AND job.closed = 0
        ORDER BY job.seq
        LIMIT 1
    ) AS first
    UNION
    SELECT job.seq
    FROM unnest(%(keys)s::text[]) AS wanted (key)
    JOIN {schema}.job
      ON job.key = wanted.key AND job.key IS NOT NULL AND job.closed = 0 AND (job.gate IS NULL OR job.gate <> 2)
)
-- The time is read outside: inside it would be read before the row is locked.
SELECT {columns}, {now}
FROM (
    SELECT {job_columns}
    FROM member
    JOIN {schema}.job ON job.seq = member.seq
    WHERE job.closed = 0
    ORDER BY job.seq
    FOR UPDATE OF job
) AS locked
