-- Move delayed jobs that are due into the ready set, most urgent first, at most %(limit)s.
-- Jobs before `since` were moved by an earlier pass; dead index entries of such jobs are not read again.
WITH due AS MATERIALIZED (
    SELECT found.seq
    FROM generate_series(0, 4) AS level
    CROSS JOIN LATERAL (
        SELECT job.seq
        FROM {schema}.job
        WHERE job.gate = 1 AND job.priority = level AND job.due_at <= %(now)s AND job.due_at > %(since)s
        ORDER BY job.due_at, job.seq
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS found
    LIMIT %(limit)s
),
changed AS (
    UPDATE {schema}.job
    SET gate = 0,
        late = true,
        late_at = %(now)s
    FROM due
    WHERE job.seq = due.seq
    RETURNING {job_columns}
),
come AS (
    INSERT INTO {schema}.ready_tag (tag, priority, order_at, seq)
    SELECT tag, changed.priority, changed.order_at, changed.seq
    FROM changed
    CROSS JOIN LATERAL json_array_elements_text(changed.tags::json) AS tag
    WHERE changed.tags <> '[]'
)
SELECT {columns} FROM changed ORDER BY priority, due_at, seq
