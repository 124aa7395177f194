-- The first unfinished job of the same key that a job waits for, directly or through others.
WITH RECURSIVE awaited (seq) AS (
    SELECT edge.on_seq FROM {schema}.edge WHERE edge.job_seq = %(seq)s AND edge.kind <> 'spawned'
    UNION
    SELECT edge.on_seq FROM awaited JOIN {schema}.edge ON edge.job_seq = awaited.seq AND edge.kind <> 'spawned'
)
SELECT job.seq
FROM awaited
JOIN {schema}.job ON job.seq = awaited.seq
WHERE job.key = %(key)s AND job.closed = 0
ORDER BY job.seq
LIMIT 1
