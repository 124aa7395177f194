-- Ready jobs per type, counted up to a bound, and since when the first of them is ready. From one type to the next, and in
-- each from the first of one priority to the first of the next: what is walked through is only what is counted.
WITH RECURSIVE found (value) AS (
    SELECT (SELECT type FROM job INDEXED BY job_ready_type WHERE gate = 0 ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT type FROM job INDEXED BY job_ready_type WHERE gate = 0 AND type > found.value ORDER BY type LIMIT 1)
    FROM found
    WHERE found.value IS NOT NULL
),
level (priority) AS ({levels})
SELECT
    value,
    (SELECT count(*) FROM (
        SELECT 1 FROM job INDEXED BY job_ready_type WHERE gate = 0 AND type = found.value LIMIT :most)),
    (SELECT min((
        SELECT ready_at
        FROM job INDEXED BY job_ready_type
        WHERE gate = 0 AND type = found.value AND priority = level.priority
        ORDER BY order_at, seq
        LIMIT 1)) FROM level)
FROM found
WHERE value IS NOT NULL
