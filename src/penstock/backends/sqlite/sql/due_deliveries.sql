-- From one lane to the next by the index, and of each the first few: the cost is that of the lanes, not of the rows.
WITH RECURSIVE known (lane) AS (
    SELECT (SELECT min(lane) FROM delivery WHERE due_at IS NOT NULL)
    UNION ALL
    SELECT (SELECT min(lane) FROM delivery WHERE due_at IS NOT NULL AND lane > known.lane)
    FROM known
    WHERE known.lane IS NOT NULL
)
SELECT {delivery_columns}
FROM delivery
WHERE seq IN (
    SELECT each.seq
    FROM known
    CROSS JOIN delivery AS each ON each.seq IN (
        SELECT due.seq
        FROM delivery AS due
        WHERE due.lane = known.lane AND due.due_at <= ?1 AND due.due_at IS NOT NULL
        ORDER BY due.due_at, due.seq
        LIMIT ?2))
ORDER BY due_at, seq
LIMIT ?3
