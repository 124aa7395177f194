-- Of each table of the store: its persistence, whether autovacuum is off, and its live and dead rows.
SELECT
    pg_class.relname,
    pg_class.relpersistence,
    coalesce(pg_class.reloptions::text, '') LIKE '%%autovacuum_enabled=false%%'
        OR coalesce(pg_class.reloptions::text, '') LIKE '%%autovacuum_enabled=off%%',
    coalesce(pg_stat_get_live_tuples(pg_class.oid), 0),
    coalesce(pg_stat_get_dead_tuples(pg_class.oid), 0)
FROM pg_catalog.pg_class
WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind = 'r'
ORDER BY relname
