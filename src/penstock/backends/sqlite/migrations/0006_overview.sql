-- oldest code: 6
-- What people look at: jobs by type and status, and what each process takes. Older code does not keep these counts.

-- Counts per type and status, up to setting 'folded'; `entered` is how often a job ever came into the status.
CREATE TABLE type_stat (
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    entered INTEGER NOT NULL,
    PRIMARY KEY (type, status)
) STRICT, WITHOUT ROWID;

-- What each journal row does to them.
CREATE VIEW type_delta AS
SELECT seq, type, status, 1 AS jobs, from_status IS NOT status AS entered
FROM journal
WHERE verb NOT IN ('delete', 'cleanup')
UNION ALL
SELECT seq, type, from_status, -1, 0
FROM journal
WHERE from_status IS NOT NULL;

-- What is stored, less what the journal's tail will add.
INSERT INTO type_stat (type, status, jobs, entered)
SELECT type, status, sum(jobs), sum(jobs)
FROM (
    SELECT type, status, count(*) AS jobs FROM job GROUP BY type, status
    UNION ALL
    SELECT type, status, -sum(jobs)
    FROM type_delta
    WHERE seq > (SELECT value FROM setting WHERE name = 'folded')
    GROUP BY type, status
)
GROUP BY type, status
HAVING sum(jobs) <> 0;

ALTER TABLE owner ADD COLUMN opened_at INTEGER;
ALTER TABLE owner ADD COLUMN intakes TEXT NOT NULL DEFAULT '[]';
