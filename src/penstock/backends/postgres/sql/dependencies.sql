-- Lock and return jobs by id, their keys first: a transaction that waits for the row of a job with a key holds that key.
-- FOR UPDATE, not FOR SHARE: storing an edge writes to the row (`fan`), and two sharers who both want to write would
-- deadlock.
WITH locked AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(%(lock_class)s, wanted.stripe)
    FROM (
        SELECT DISTINCT hashtext(job.key) & %(stripes)s AS stripe
        FROM {schema}.job
        WHERE job.id = ANY(%(ids)s::text[]) AND job.key IS NOT NULL
        ORDER BY stripe
    ) AS wanted
)
-- The time is read outside: inside it would be read before the row is locked.
SELECT {columns}, {now}
FROM (
    SELECT {job_columns}
    FROM {schema}.job
    WHERE job.id = ANY(%(ids)s::text[]) AND (SELECT count(*) FROM locked) >= 0
    ORDER BY job.seq
    FOR UPDATE OF job
) AS locked
