-- Tags of the jobs in `stored`, once for all jobs and once for the ready set.
tagged AS (
    INSERT INTO {schema}.job_tag (tag, seq)
    SELECT tag, stored.seq
    FROM stored
    CROSS JOIN LATERAL json_array_elements_text(stored.tags::json) AS tag
),
made_ready AS (
    INSERT INTO {schema}.ready_tag (tag, priority, order_at, seq)
    SELECT tag, stored.priority, stored.order_at, stored.seq
    FROM stored
    CROSS JOIN LATERAL json_array_elements_text(stored.tags::json) AS tag
    WHERE stored.gate = 0
),
