-- Jobs in flight that nobody holds any more, with their keys, not yet locked.
SELECT seq, key
FROM (
    (
        SELECT job.seq, job.key
        FROM {schema}.job
        WHERE job.lease_until IS NOT NULL AND job.lease_until <= %(now)s
        ORDER BY job.lease_until
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT job.seq, job.key
        FROM {schema}.job
        LEFT JOIN {schema}.owner ON owner.id = job.owner
        WHERE job.owner IS NOT NULL
          AND (
              job.owner = ANY(%(gone)s::text[])
              OR owner.id IS NULL
              OR (
                  job.owner <> ALL(%(spared)s::text[])
                  AND owner.beat_at + LEAST(%(liveness)s, COALESCE(job.visibility, %(liveness)s)) <= %(now)s
              )
          )
        LIMIT %(limit)s
    )
) AS found
LIMIT %(limit)s
