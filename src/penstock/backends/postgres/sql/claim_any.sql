-- The ready jobs that come first. Rows are locked one by one in that order, and the outer limit stops the locking;
-- MATERIALIZED so that the choice is made once, else the limit could be exceeded.
picked AS MATERIALIZED (
    SELECT found.seq, found.is_usual, moment.now
    {lanes}
    CROSS JOIN LATERAL (
        SELECT job.seq, {is_usual} AS is_usual
        FROM {schema}.job
        -- `gate = 0`, said so that of all indexes only job_ready fits, whatever the statistics say.
        WHERE job.gate >= 0
          AND job.gate < 1
          AND job.priority = span.priority
          AND (job.order_at, job.seq) > (span.low_at, span.low_seq)
          AND (job.order_at, job.seq) <= (span.high_at, span.high_seq)
          AND NOT (span.is_back AND job.late AND job.late_at > %(late_since)s::bigint)
        ORDER BY job.order_at, job.seq
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE NOT moment.is_due AND NOT moment.is_withheld
    LIMIT %(limit)s
),
