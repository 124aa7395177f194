-- The oldest open transaction of another session in this database.
SELECT
    pid,
    coalesce(usename, '?'),
    coalesce(application_name, ''),
    coalesce(state, '?'),
    extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_catalog.pg_stat_activity
WHERE xact_start IS NOT NULL
  AND pid <> pg_backend_pid()
  AND datname = current_database()
  AND backend_type IN ('client backend', 'walsender')
ORDER BY xact_start
LIMIT 1
