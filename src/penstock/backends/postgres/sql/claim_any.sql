-- The ready jobs that come first, most urgent first, from each priority's floor on (see floors.py). A floor holds
-- only while no ready job is late.
-- Rows are locked one by one in that order, and the outer limit stops the locking; MATERIALIZED so that the choice
-- is made once, else the limit could be exceeded.
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
          AND job.priority = lane.priority
          AND (job.order_at, job.seq) > (floor.order_at, lane.seq)
        ORDER BY job.order_at, job.seq
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS found
    LIMIT %(limit)s
)
