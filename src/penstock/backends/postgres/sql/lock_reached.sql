-- Lock in one step, in the order of their numbers, the keys given and those of the jobs named by id or number; where the
-- work goes further (`reach`), also those of the jobs that wait for them, at 2 directly or not. A job's key never changes,
-- so it may be read before anything is locked. Then (`reach` 1) the rows, so that a dependent is locked together with the
-- job that makes it ready. Returns the keys that were not free (if it may not wait for them), the keys and jobs reached,
-- and the time, read when all was locked.
WITH RECURSIVE touched (seq, key, fan, goes_on) AS (
    SELECT job.seq, job.key, job.fan, %(reach)s::integer > 0
    FROM {schema}.job
    WHERE job.id = ANY(%(ids)s::text[])
    UNION ALL
    SELECT job.seq, job.key, job.fan, %(reach)s::integer > 0
    FROM {schema}.job
    WHERE job.seq = ANY(%(seqs)s::bigint[])
    UNION
    SELECT waiting.seq, waiting.key, waiting.fan, %(reach)s::integer > 1
    FROM touched
    JOIN {schema}.edge ON edge.on_seq = touched.seq AND edge.kind <> 'spawned'
    JOIN {schema}.job AS waiting ON waiting.seq = edge.job_seq
    WHERE touched.goes_on AND touched.fan = 1 AND waiting.closed = 0
),
wanted AS MATERIALIZED (
    SELECT each.key, hashtext(each.key) & %(stripes)s AS stripe
    FROM (
        SELECT touched.key FROM touched WHERE touched.key IS NOT NULL
        UNION
        SELECT unnest(%(keys)s::text[])
    ) AS each (key)
),
locked AS MATERIALIZED (
    SELECT
        each.stripe,
        CASE
            WHEN %(may_wait)s THEN pg_advisory_xact_lock(%(lock_class)s, each.stripe)::text IS NOT NULL
            ELSE pg_try_advisory_xact_lock(%(lock_class)s, each.stripe)
        END AS is_held
    FROM (SELECT DISTINCT wanted.stripe FROM wanted ORDER BY wanted.stripe) AS each
),
held AS MATERIALIZED (
    SELECT job.seq
    FROM {schema}.job
    WHERE %(reach)s::integer = 1
      AND job.seq = ANY(ARRAY(SELECT touched.seq FROM touched))
      AND (SELECT bool_and(locked.is_held) FROM locked) IS NOT FALSE
    ORDER BY job.seq
    FOR UPDATE
)
-- `held` is named so that it is run at all.
SELECT
    done.held,
    done.missing,
    ARRAY(SELECT wanted.key FROM wanted),
    ARRAY(SELECT touched.seq FROM touched),
    {now}
FROM (
    SELECT
        ARRAY(SELECT wanted.key FROM wanted JOIN locked USING (stripe) WHERE NOT locked.is_held) AS missing,
        (SELECT count(*) FROM held) AS held
    OFFSET 0
) AS done
