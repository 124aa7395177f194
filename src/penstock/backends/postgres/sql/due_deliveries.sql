-- From one lane to the next by the index, and of each the first few: the cost is that of the lanes, not of the rows.
WITH RECURSIVE known (lane) AS (
    (SELECT lane FROM {schema}.delivery WHERE due_at IS NOT NULL ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (
        SELECT delivery.lane
        FROM {schema}.delivery
        WHERE delivery.due_at IS NOT NULL AND delivery.lane > known.lane
        ORDER BY delivery.lane
        LIMIT 1
    )
    FROM known
    WHERE known.lane IS NOT NULL
)
SELECT first.*
FROM known
CROSS JOIN LATERAL (
    SELECT {delivery_columns}
    FROM {schema}.delivery
    WHERE delivery.lane = known.lane
      AND delivery.due_at IS NOT NULL
      AND delivery.due_at <= COALESCE(%(now)s::bigint, {now})
    ORDER BY delivery.due_at, delivery.seq
    LIMIT %(per_lane)s
) AS first
ORDER BY first.due_at, first.seq
LIMIT %(limit)s
