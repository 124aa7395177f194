-- Jobs in flight that nobody holds any more, not yet locked.
SELECT job.seq
FROM {schema}.job
LEFT JOIN {schema}.owner ON owner.id = job.owner
WHERE job.status IN ('running', 'cancelling')
  AND CASE
      WHEN job.owner IS NULL THEN job.lease_until <= %(now)s
      ELSE job.owner = ANY(%(gone)s::text[])
          OR owner.id IS NULL
          OR (
              job.owner <> ALL(%(spared)s::text[])
              AND GREATEST(owner.beat_at, job.assigned_at)
                  + LEAST(%(liveness)s, COALESCE(job.visibility, %(liveness)s)) <= %(now)s
          )
  END
LIMIT %(limit)s
