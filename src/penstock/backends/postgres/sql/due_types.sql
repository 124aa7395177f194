-- Jobs per type that are due, but not promoted yet, counted up to a bound.
SELECT due.type, count(*), min(due.due_at)
FROM generate_series(0, 4) AS level
CROSS JOIN LATERAL (
    SELECT type, due_at
    FROM {schema}.job
    WHERE gate = 1 AND priority = level AND due_at <= %(now)s
    ORDER BY due_at, seq
    LIMIT %(most)s
) AS due
GROUP BY due.type
