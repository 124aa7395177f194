-- The first journal row of each job in `stored`.
journaled AS (
    INSERT INTO {schema}.journal_inbox (
        job_seq, recorded_at, job_id, n, type, verb, status, attempt, retry_count, failures, max_attempts, priority,
        key, tags, idempotency_key, assignee_id, due_at, error_category, error_code, error_message, progress,
        after, after_any, parent_id)
    SELECT
        seq, updated_at, id, n, type, verb, status, attempt, retry_count, failures, max_attempts, priority,
        key, tags, idempotency_key, assignee_id, due_at, error_category, error_code, error_message, progress,
        after, after_any, parent_id
    FROM stored
    ORDER BY seq
)
