-- The ready job of one key; at most one has its turn.
picked AS MATERIALIZED (
    SELECT job.seq, {is_usual} AS is_usual, moment.now
    FROM moment
    CROSS JOIN {schema}.job
    WHERE NOT moment.is_due AND NOT moment.is_withheld
      AND job.key = %(key)s
      AND job.closed = 0
      AND (job.gate IS NULL OR job.gate <> 2)
      -- Written so that no index of the ready set fits: it could be large, the key is not.
      AND job.gate IS NOT DISTINCT FROM 0
      AND (%(types)s::text[] IS NULL OR job.type = ANY(%(types)s::text[]))
      AND job.tags::jsonb ?& %(tags)s::text[]
    ORDER BY job.priority, job.order_at, job.seq
    LIMIT %(limit)s
    FOR UPDATE OF job SKIP LOCKED
),
