-- For each type: how many jobs are ready, counted up to %(most)s, and since when the longest waiting is of those that
-- come next in their priority. What is walked through is only what is counted.
-- `gate <= 0` is `gate = 0`, said so that of all indexes only job_ready_type fits.
WITH RECURSIVE {ready_type}
SELECT
    ready_type.value,
    (
        SELECT count(*)
        FROM (
            SELECT FROM {schema}.job WHERE gate <= 0 AND type = ready_type.value LIMIT %(most)s
        ) AS counted
    ),
    (
        SELECT min(first.ready_at)
        FROM generate_series(0, 4) AS level
        CROSS JOIN LATERAL (
            SELECT ready_at
            FROM {schema}.job
            WHERE gate <= 0 AND type = ready_type.value AND priority = level
            ORDER BY order_at, seq
            LIMIT 1
        ) AS first
    )
FROM ready_type
WHERE ready_type.value IS NOT NULL
