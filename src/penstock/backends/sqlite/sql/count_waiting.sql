-- How many jobs wait to be claimed: the counts that are folded, and those of the journal's tail.
SELECT total(jobs)
FROM (
    SELECT status, jobs FROM stat WHERE tag = ''
    UNION ALL
    SELECT status, jobs FROM stat_delta WHERE seq > (SELECT value FROM setting WHERE name = 'folded'))
WHERE status IN ('initial_pending', 'failed_retry', 'unknown_retry')
