-- As claim_any, for jobs of one type.
picked AS MATERIALIZED (
    SELECT found.seq
    FROM unnest(%(priorities)s::smallint[], %(order_floors)s::bigint[], %(seq_floors)s::bigint[])
        AS lane (priority, order_at, seq)
    CROSS JOIN LATERAL (
        SELECT CASE WHEN (SELECT EXISTS (SELECT FROM {schema}.job WHERE gate = 0 AND late)) THEN -1 ELSE lane.order_at END
    ) AS floor (order_at)
    CROSS JOIN LATERAL (
        SELECT job.seq
        FROM {schema}.job
        WHERE job.gate = 0
          AND job.type = %(type)s
          AND job.priority = lane.priority
          AND (job.order_at, job.seq) > (floor.order_at, lane.seq)
        ORDER BY job.order_at, job.seq
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS found
    LIMIT %(limit)s
)
