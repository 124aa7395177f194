-- The ends of jobs with a callback url among the next journal rows.
WITH portion AS MATERIALIZED (
    SELECT *
    FROM {schema}.journal
    WHERE seq > %(after)s
    ORDER BY seq
    LIMIT %(portion)s
)
SELECT
    {portion_columns},
    job.callback_url,
    job.correlation_id,
    job.created_at,
    CASE WHEN portion.status = 'completed' AND length(result.data) <= %(max_result)s THEN result.data END,
    CASE WHEN portion.status = 'completed' THEN length(result.data) END
FROM portion
JOIN {schema}.job ON job.seq = portion.job_seq AND job.callback_url IS NOT NULL
LEFT JOIN {schema}.result ON result.seq = portion.job_seq
WHERE portion.status = ANY(%(final)s::text[]) AND portion.from_status IS DISTINCT FROM portion.status
ORDER BY portion.seq
LIMIT %(limit)s
