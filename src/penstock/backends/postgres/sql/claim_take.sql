-- Begin an attempt of each picked job, journal it, and take it out of the ready set by tag.
taken AS (
    UPDATE {schema}.job
    SET status = 'running',
        from_status = job.status,
        verb = 'claim',
        n = job.n + 1,
        updated_at = picked.now,
        gate = NULL,
        late = false,
        attempt = job.attempt + 1,
        assignee_id = %(assignee_id)s,
        assigned_at = picked.now,
        attempt_started_at = picked.now,
        attempt_ready_at = job.ready_at,
        started_at = COALESCE(job.started_at, picked.now),
        progress = 0,
        description = CASE WHEN job.attempt = 0 THEN job.description END,
        owner = %(owner)s,
        lease_until = CASE WHEN %(owner)s::text IS NULL THEN picked.now + job.visibility END,
        deadline_at = picked.now + job.execution
    FROM picked
    WHERE job.seq = picked.seq
    RETURNING {job_columns}, picked.is_usual
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
-- Only what a first claim needs; a job with a past, or with something unusual, is read whole afterwards.
SELECT
    moment.now, pg_current_xact_id_if_assigned()::text, moment.is_due,
    took.*,
    -- Which late jobs need not be looked at again: those before this time.
    (SELECT CASE WHEN count(*) >= %(most_late)s::bigint THEN {lowest} ELSE min(late.late_at) END FROM late),
    moment.is_withheld
FROM moment
LEFT JOIN (
    SELECT
        taken.seq, taken.n, taken.order_at, taken.from_status,
        taken.is_usual
            AND NOT EXISTS (SELECT FROM {schema}.result WHERE result.seq = taken.seq)
            AND NOT EXISTS (SELECT FROM {schema}.checkpoint WHERE checkpoint.seq = taken.seq),
        payload.data, {first_columns}
    FROM taken
    LEFT JOIN {schema}.payload ON payload.seq = taken.seq
) AS took ON true
ORDER BY took.priority, took.order_at, took.seq
