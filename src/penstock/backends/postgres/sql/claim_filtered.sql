-- The first ready jobs that meet every filter, found by going through the ready set in order.
picked AS MATERIALIZED (
    SELECT job.seq
    FROM {schema}.job
    WHERE job.gate = 0
      AND (%(types)s::text[] IS NULL OR job.type = ANY(%(types)s::text[]))
      AND (%(key)s::text IS NULL OR job.key = %(key)s)
    ORDER BY job.priority, job.order_at, job.seq
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
