-- Counts per type and status: those folded, and those of the journal's tail.
SELECT type, status, sum(jobs), sum(entered)
FROM (
    SELECT type, status, jobs, entered FROM type_stat
    UNION ALL
    SELECT type, status, sum(jobs), sum(entered) FROM type_delta WHERE seq > ? GROUP BY type, status)
GROUP BY type, status
