-- The ready jobs that a claim wants and that came late since the time from which it does not know them.
late AS MATERIALIZED (
    SELECT tardy.seq, tardy.priority, tardy.order_at, tardy.type, tardy.late_at
    FROM {schema}.job AS tardy
    WHERE tardy.gate = 0 AND tardy.late AND tardy.late_at > %(late_since)s::bigint AND {is_wanted}
    LIMIT %(most_late)s::bigint
),
