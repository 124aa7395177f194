-- Complete the jobs in flight from whose end nothing follows: no key, nobody waiting, and the attempt that reports holds
-- them. A null attempt is any. A row that changes meanwhile is looked at again.
WITH named AS MATERIALIZED (
    SELECT id, attempt FROM unnest(%(ids)s::text[], %(attempts)s::bigint[]) AS n (id, attempt)
),
done AS (
    UPDATE {schema}.job
    SET from_status = job.status,
        status = 'completed',
        verb = 'complete',
        n = job.n + 1,
        updated_at = %(now)s,
        finalized_at = %(now)s,
        closed = 1,
        gate = NULL,
        owner = NULL,
        lease_until = NULL,
        deadline_at = NULL
    FROM named
    WHERE job.id = named.id
      AND job.key IS NULL
      AND job.fan = 0
      AND job.status IN ('running', 'cancelling')
      AND (named.attempt IS NULL OR job.attempt = named.attempt)
    RETURNING {job_columns}, job.attempt_ready_at
),
journaled AS (
    INSERT INTO {schema}.journal_inbox (
        job_seq, recorded_at, job_id, n, type, verb, from_status, status, attempt, retry_count, failures,
        max_attempts, priority, tags, idempotency_key, assignee_id, due_at, error_category, error_code,
        error_message, progress, ready_at, started_at)
    SELECT
        seq, updated_at, id, n, type, verb, from_status, status, attempt, retry_count, failures,
        max_attempts, priority, tags, idempotency_key, assignee_id, due_at, error_category, error_code,
        error_message, progress, attempt_ready_at, attempt_started_at
    FROM done
    ORDER BY seq
)
SELECT id, seq, assignee_id, n FROM done
