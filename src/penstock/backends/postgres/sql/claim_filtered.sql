-- The first ready jobs that meet every filter, found by going through the ready set in order.
picked AS MATERIALIZED (
    SELECT job.seq, {is_usual} AS is_usual, moment.now
    FROM moment
    CROSS JOIN {schema}.job
    WHERE NOT moment.is_due
      AND job.gate = 0
      AND job.type = ANY(%(types)s::text[])
    ORDER BY job.priority, job.order_at, job.seq
    LIMIT %(limit)s
    FOR UPDATE OF job SKIP LOCKED
),
