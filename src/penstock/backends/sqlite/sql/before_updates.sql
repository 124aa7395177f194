-- What the rows before updates added to the counts: an update may have changed the tags, so it subtracts that first.
SELECT earlier.tags, later.from_status, count(*), sum(earlier.retry_count)
FROM journal AS later
JOIN journal AS earlier ON earlier.job_seq = later.job_seq AND earlier.n = later.n - 1
WHERE later.seq > ?1 AND later.seq <= ?2 AND later.verb = 'update'
GROUP BY earlier.tags, later.from_status
