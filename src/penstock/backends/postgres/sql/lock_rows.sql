-- Lock the keys of the jobs with these ids; a job's key never changes, so it may be read before anything is locked.
SELECT pg_advisory_xact_lock(%(lock_class)s, stripe)
FROM (
    SELECT DISTINCT hashtext(job.key) & %(stripes)s AS stripe
    FROM {schema}.job
    WHERE job.id = ANY(%(ids)s::text[]) AND job.key IS NOT NULL
    ORDER BY stripe
) AS wanted
