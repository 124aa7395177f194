-- As claim_any, for jobs of several types: the first %(width)s of them all are merged, then locked in order.
-- Candidates are read before they are locked, so beside other claims the choice may come out short; then the caller
-- asks again with more candidates.
picked AS MATERIALIZED (
    SELECT job.seq, {is_usual} AS is_usual, candidate.now
    FROM (
        SELECT found.seq, found.priority, found.order_at, moment.now
        FROM (SELECT unnest(%(types)s::text[]) AS type) AS wanted
        CROSS JOIN LATERAL (
            SELECT first.seq, first.priority, first.order_at
            {lanes}
            CROSS JOIN LATERAL (
                SELECT ready.seq, ready.priority, ready.order_at
                FROM {schema}.job AS ready
                -- `gate <= 0`: see claim_type.
                WHERE ready.gate <= 0
                  AND ready.type = wanted.type
                  AND ready.priority = span.priority
                  AND (ready.order_at, ready.seq) > (span.low_at, span.low_seq)
                  AND (ready.order_at, ready.seq) <= (span.high_at, span.high_seq)
                  AND NOT (span.is_back AND ready.late AND ready.late_at > %(late_since)s::bigint)
                ORDER BY ready.order_at, ready.seq
                LIMIT %(width)s
            ) AS first
            WHERE NOT moment.is_due AND NOT moment.is_withheld
            LIMIT %(width)s
        ) AS found
        CROSS JOIN moment
        ORDER BY found.priority, found.order_at, found.seq
        LIMIT %(width)s
    ) AS candidate
    JOIN {schema}.job ON job.seq = candidate.seq
    -- Written so that no index of the ready set fits: the job is looked up by its number.
    WHERE job.gate IS NOT DISTINCT FROM 0
    ORDER BY candidate.priority, candidate.order_at, candidate.seq
    LIMIT %(limit)s
    FOR UPDATE OF job SKIP LOCKED
),
