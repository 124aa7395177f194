-- The bytes of jobs: payload, result and checkpoint.
SELECT wanted.seq, payload.data, result.data, checkpoint.data
FROM unnest(%(seqs)s::bigint[]) AS wanted (seq)
LEFT JOIN {schema}.payload ON payload.seq = wanted.seq
LEFT JOIN {schema}.result ON result.seq = wanted.seq
LEFT JOIN {schema}.checkpoint ON checkpoint.seq = wanted.seq
