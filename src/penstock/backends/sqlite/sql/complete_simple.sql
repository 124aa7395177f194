-- Complete the jobs in flight whose end affects no other job: no key, no dependents, and the reporting attempt is the
-- current one. A null attempt is any.
UPDATE OR FAIL job
SET {complete_set}
FROM json_each(?1) AS fence
WHERE job.id = fence.key AND job.key IS NULL AND job.fan = 0 AND job.status IN ('running', 'cancelling')
    AND (fence.value IS NULL OR job.attempt = fence.value)
RETURNING id, seq, assignee_id, type, tags, from_status, attempt
