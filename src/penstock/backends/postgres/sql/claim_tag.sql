-- As claim_any, for jobs that have %(tag)s and meet the other filters.
picked AS MATERIALIZED (
    SELECT found.seq, found.is_usual, moment.now
    {lanes}
    CROSS JOIN LATERAL (
        SELECT job.seq, {is_usual} AS is_usual
        FROM {schema}.ready_tag
        JOIN {schema}.job ON job.seq = ready_tag.seq
        WHERE ready_tag.tag = %(tag)s
          AND ready_tag.priority = span.priority
          AND (ready_tag.order_at, ready_tag.seq) > (span.low_at, span.low_seq)
          AND (ready_tag.order_at, ready_tag.seq) <= (span.high_at, span.high_seq)
          AND NOT (span.is_back AND job.late AND job.late_at > %(late_since)s::bigint)
          -- Written so that no index of the ready set fits: the job is looked up by its number.
          AND job.gate IS NOT DISTINCT FROM 0
          AND (%(types)s::text[] IS NULL OR job.type = ANY(%(types)s::text[]))
          AND job.tags::jsonb ?& %(tags)s::text[]
        ORDER BY ready_tag.order_at, ready_tag.seq
        LIMIT %(limit)s
        FOR UPDATE OF job SKIP LOCKED
    ) AS found
    WHERE NOT moment.is_due AND NOT moment.is_withheld
    LIMIT %(limit)s
),
