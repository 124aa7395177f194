-- The ready job of one key; at most one has its turn.
picked AS MATERIALIZED (
    SELECT job.seq
    FROM {schema}.job
    WHERE job.key = %(key)s
      AND job.closed = 0
      AND (job.gate IS NULL OR job.gate <> 2)
      AND job.gate = 0
      AND (%(types)s::text[] IS NULL OR job.type = ANY(%(types)s::text[]))
      AND NOT EXISTS (
          SELECT FROM unnest(%(tags)s::text[]) AS wanted (tag)
          WHERE NOT EXISTS (
              SELECT FROM {schema}.job_tag WHERE job_tag.tag = wanted.tag AND job_tag.seq = job.seq
          )
      )
    ORDER BY job.priority, job.order_at, job.seq
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
