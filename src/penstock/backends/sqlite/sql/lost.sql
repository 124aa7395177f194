-- Jobs in flight whose owner is gone: known to be, without a row, or silent for too long.
SELECT {columns}
FROM job INDEXED BY job_owner
WHERE owner IS NOT NULL AND (
    owner IN (SELECT value FROM json_each(?1))
    OR NOT EXISTS (SELECT 1 FROM owner AS o WHERE o.id = job.owner)
    OR (owner NOT IN (SELECT value FROM json_each(?2)) AND EXISTS (
        SELECT 1
        FROM owner AS o
        WHERE o.id = job.owner
            AND max(o.beat_at, job.assigned_at) + min(?3, coalesce(job.visibility, ?3)) <= ?4)))
ORDER BY seq
LIMIT ?5
