-- The first journal row of plain jobs just stored: shorter than journal_new, since most of it is at its default.
INSERT INTO {schema}.journal_inbox (
    job_seq, recorded_at, job_id, n, type, verb, status, attempt, retry_count, failures, max_attempts, priority,
    tags, progress, after, after_any)
SELECT
    seq, updated_at, id, 1, type, 'enqueue', 'initial_pending', 0, 0, 0, max_attempts, priority,
    tags, 0, '[]', '[]'
FROM stored
