-- Claimed jobs that have a past, or something unusual: their rows and blobs.
SELECT {job_columns}, payload.data, result.data, checkpoint.data
FROM {schema}.job
LEFT JOIN {schema}.payload ON payload.seq = job.seq
LEFT JOIN {schema}.result ON result.seq = job.seq
LEFT JOIN {schema}.checkpoint ON checkpoint.seq = job.seq
WHERE job.seq = ANY(%(seqs)s::bigint[])
