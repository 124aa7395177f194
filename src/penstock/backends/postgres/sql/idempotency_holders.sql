-- The jobs that hold idempotency keys now, by type and key.
SELECT idempotency.type, idempotency.key, idempotency.job_id, idempotency.expires_at, coalesce(job.closed, 1)
FROM unnest(%(types)s::text[], %(keys)s::text[]) AS wanted (type, key)
JOIN {schema}.idempotency ON idempotency.type = wanted.type AND idempotency.key = wanted.key
LEFT JOIN {schema}.job ON job.id = idempotency.job_id
WHERE idempotency.expires_at > %(now)s
