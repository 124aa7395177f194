-- How many jobs are delayed, counted up to a bound.
SELECT count(*)
FROM (
    SELECT
    FROM generate_series(0, 4) AS level
    CROSS JOIN LATERAL (
        SELECT FROM {schema}.job WHERE gate = 1 AND priority = level AND due_at > %(now)s LIMIT %(most)s
    ) AS one
    LIMIT %(most)s
) AS counted
