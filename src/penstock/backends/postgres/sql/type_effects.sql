-- What each row of `tail` (journal rows) does to the counts of its type.
type_effect AS (
    SELECT
        tail.type,
        part.status,
        sum(part.jobs)::bigint AS jobs,
        sum(part.entered)::bigint AS entered
    FROM (
        SELECT type, verb, from_status, status, count(*) AS amount
        FROM tail
        GROUP BY type, verb, from_status, status
    ) AS tail
    CROSS JOIN LATERAL (
        VALUES
        (
            tail.status,
            CASE WHEN tail.verb IN ('delete', 'cleanup') THEN 0 ELSE tail.amount END,
            CASE WHEN tail.status IS DISTINCT FROM tail.from_status THEN tail.amount ELSE 0 END
        ),
        (tail.from_status, -tail.amount, 0)
    ) AS part (status, jobs, entered)
    WHERE part.status IS NOT NULL
    GROUP BY tail.type, part.status
)
