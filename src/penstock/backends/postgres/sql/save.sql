-- Write jobs that made a journaled step, its journal row, and the ready set by tag.
-- The rows are locked by this transaction, so what `was` and `old` read is what the update replaces.
WITH given AS MATERIALIZED (
    SELECT {columns}, ordinal
    FROM ROWS FROM (json_to_recordset(%(rows)s::json) AS ({typed_columns}))
        WITH ORDINALITY AS r ({columns}, ordinal)
),
was AS MATERIALIZED (
    SELECT tag COLLATE "C" AS tag, job.priority, job.order_at, job.seq
    FROM given
    JOIN {schema}.job ON job.seq = given.seq
    CROSS JOIN LATERAL json_array_elements_text(job.tags::json) AS tag
    -- Written so that no index of the ready set fits: the job is looked up by its number.
    WHERE job.gate IS NOT DISTINCT FROM 0 AND job.tags <> '[]'
),
becomes AS MATERIALIZED (
    SELECT tag COLLATE "C" AS tag, given.priority, given.order_at, given.seq
    FROM given
    CROSS JOIN LATERAL json_array_elements_text(given.tags::json) AS tag
    WHERE given.gate = 0 AND given.tags <> '[]'
),
changed AS (
    UPDATE {schema}.job
    SET {assignments},
        late = COALESCE(given.gate = 0 AND given.order_at <> given.updated_at, false),
        late_at = given.updated_at,
        attempt_ready_at = CASE
            WHEN given.verb IN ('claim', 'restart') THEN given.ready_at
            ELSE job.attempt_ready_at
        END,
        description = CASE
            WHEN given.verb IN ('claim', 'restart') AND job.attempt > 0 THEN NULL
            ELSE job.description
        END
    FROM given
    WHERE job.seq = given.seq
),
gone AS (
    DELETE FROM {schema}.ready_tag
    USING (SELECT tag, priority, order_at, seq FROM was EXCEPT SELECT tag, priority, order_at, seq FROM becomes) AS old
    WHERE ready_tag.tag = old.tag
      AND ready_tag.priority = old.priority
      AND ready_tag.order_at = old.order_at
      AND ready_tag.seq = old.seq
),
come AS (
    INSERT INTO {schema}.ready_tag (tag, priority, order_at, seq)
    SELECT tag, priority, order_at, seq FROM becomes
    EXCEPT
    SELECT tag, priority, order_at, seq FROM was
)
INSERT INTO {schema}.journal_inbox (
    job_seq, recorded_at, job_id, n, type, verb, from_status, status, attempt, retry_count, failures, max_attempts,
    priority, key, tags, idempotency_key, assignee_id, due_at, error_category, error_code, error_message, progress,
    ready_at, started_at, tags_before)
SELECT
    given.seq, given.updated_at, given.id, given.n, given.type, given.verb, given.from_status, given.status,
    given.attempt, given.retry_count, given.failures, given.max_attempts, given.priority, given.key, given.tags,
    given.idempotency_key, given.assignee_id, given.due_at, given.error_category, given.error_code,
    given.error_message, given.progress,
    CASE WHEN step.ends_attempt THEN old.attempt_ready_at END,
    CASE WHEN step.ends_attempt THEN old.attempt_started_at END,
    CASE WHEN given.verb = 'update' THEN old.tags END
FROM given
JOIN {schema}.job AS old ON old.seq = given.seq
CROSS JOIN LATERAL (
    SELECT given.from_status IN ('running', 'cancelling') AND given.status NOT IN ('running', 'cancelling')
) AS step (ends_attempt)
ORDER BY given.ordinal
