-- Begin an attempt of each picked job, journal it, and take it out of the ready set by tag.
taken AS (
    UPDATE {schema}.job
    SET status = 'running',
        from_status = job.status,
        verb = 'claim',
        n = job.n + 1,
        updated_at = %(now)s,
        gate = NULL,
        late = false,
        attempt = job.attempt + 1,
        assignee_id = %(assignee_id)s,
        assigned_at = %(now)s,
        attempt_started_at = %(now)s,
        attempt_ready_at = job.ready_at,
        started_at = COALESCE(job.started_at, %(now)s),
        progress = 0,
        owner = %(owner)s,
        lease_until = CASE WHEN %(owner)s::text IS NULL THEN %(now)s + job.visibility END,
        deadline_at = %(now)s + job.execution
    FROM picked
    WHERE job.seq = picked.seq
    RETURNING {job_columns}
),
unready AS (
    DELETE FROM {schema}.ready_tag
    -- OFFSET keeps the two apart: else the planner looks rows up without their tag, the first column of the key.
    USING (
        SELECT had.tag, taken.priority, taken.order_at, taken.seq
        FROM taken
        CROSS JOIN LATERAL json_array_elements_text(taken.tags::json) AS had (tag)
        WHERE taken.tags <> '[]'
        OFFSET 0
    ) AS gone
    WHERE ready_tag.tag = gone.tag
      AND ready_tag.priority = gone.priority
      AND ready_tag.order_at = gone.order_at
      AND ready_tag.seq = gone.seq
),
journaled AS (
    INSERT INTO {schema}.journal_inbox (
        job_seq, recorded_at, job_id, n, type, verb, from_status, status, attempt, retry_count, failures,
        max_attempts, priority, key, tags, idempotency_key, assignee_id, due_at, error_category, error_code,
        error_message, progress)
    SELECT
        seq, updated_at, id, n, type, verb, from_status, status, attempt, retry_count, failures,
        max_attempts, priority, key, tags, idempotency_key, assignee_id, due_at, error_category, error_code,
        error_message, progress
    FROM taken
    ORDER BY priority, order_at, seq
)
SELECT {taken_columns}, payload.data, result.data, checkpoint.data
FROM taken
LEFT JOIN {schema}.payload ON payload.seq = taken.seq
LEFT JOIN {schema}.checkpoint ON checkpoint.seq = taken.seq
LEFT JOIN {schema}.result ON result.seq = taken.seq
ORDER BY taken.priority, taken.order_at, taken.seq
