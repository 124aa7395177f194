-- As claim_any, for jobs of one type. `gate <= 0` is `gate = 0`, said so that of all indexes only job_ready_type fits.
picked AS MATERIALIZED (
    SELECT found.seq, found.is_usual, moment.now
    {lanes}
    CROSS JOIN LATERAL (
        SELECT job.seq, {is_usual} AS is_usual
        FROM {schema}.job
        WHERE job.gate <= 0
          AND job.type = %(type)s
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
