-- The ends of jobs with a callback url among the next journal rows.
SELECT
    {row_columns},
    job.callback_url,
    job.correlation_id,
    job.created_at,
    CASE WHEN row.status = 'completed' AND length(result.data) <= ?3 THEN result.data END,
    CASE WHEN row.status = 'completed' THEN length(result.data) END
FROM (SELECT * FROM journal WHERE seq > ?1 ORDER BY seq LIMIT ?2) AS row
CROSS JOIN job ON job.seq = row.job_seq
LEFT JOIN result ON result.seq = job.seq
WHERE row.status IN ({final}) AND row.from_status IS NOT row.status AND job.callback_url IS NOT NULL
ORDER BY row.seq
LIMIT ?4
