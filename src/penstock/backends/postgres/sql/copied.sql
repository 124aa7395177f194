-- Journal and tag jobs that COPY has just stored, in the order of their numbers.
WITH stored AS MATERIALIZED (
    SELECT {job_columns}
    FROM {schema}.job
    WHERE job.seq = ANY(%(seqs)s::bigint[])
),
{tagging}
{journal_new}
SELECT count(*) FROM stored
