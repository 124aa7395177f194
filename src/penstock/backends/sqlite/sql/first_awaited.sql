-- The first unfinished job of the same key that a job waits for, directly or through others.
WITH RECURSIVE awaited (seq) AS (
    SELECT on_seq FROM edge WHERE job_seq = ?1 AND kind <> 'spawned'
    UNION
    SELECT edge.on_seq FROM edge JOIN awaited ON edge.job_seq = awaited.seq AND kind <> 'spawned'
)
SELECT {columns}
FROM job
WHERE seq IN (SELECT seq FROM awaited) AND key = ?2 AND closed = 0
ORDER BY seq
LIMIT 1
