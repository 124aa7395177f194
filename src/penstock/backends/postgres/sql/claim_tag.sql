-- The first ready jobs that have %(tag)s, from each priority's floor on, and meet the other filters.
picked AS MATERIALIZED (
    SELECT found.seq
    FROM unnest(%(priorities)s::smallint[], %(order_floors)s::bigint[], %(seq_floors)s::bigint[])
        AS lane (priority, order_at, seq)
    CROSS JOIN LATERAL (
        SELECT CASE WHEN (SELECT EXISTS (SELECT FROM {schema}.job WHERE gate = 0 AND late)) THEN -1 ELSE lane.order_at END
    ) AS floor (order_at)
    CROSS JOIN LATERAL (
        SELECT job.seq
        FROM {schema}.ready_tag
        JOIN {schema}.job ON job.seq = ready_tag.seq
        WHERE ready_tag.tag = %(tag)s
          AND ready_tag.priority = lane.priority
          AND (ready_tag.order_at, ready_tag.seq) > (floor.order_at, lane.seq)
          -- Written so that no index of the ready set fits: the job is looked up by its number.
          AND job.gate IS NOT DISTINCT FROM 0
          AND (%(types)s::text[] IS NULL OR job.type = ANY(%(types)s::text[]))
          AND job.tags::jsonb ?& %(tags)s::text[]
        ORDER BY ready_tag.order_at, ready_tag.seq
        LIMIT %(limit)s
        FOR UPDATE OF job SKIP LOCKED
    ) AS found
    LIMIT %(limit)s
)
