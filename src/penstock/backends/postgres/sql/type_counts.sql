-- The counts by type and status: what is folded, and the journal rows after that, numbered or not.
WITH tail AS MATERIALIZED (
    SELECT type, verb, from_status, status
    FROM {schema}.journal
    WHERE seq > (SELECT seq FROM {schema}.fold)
    UNION ALL
    SELECT type, verb, from_status, status
    FROM {schema}.journal_inbox
    WHERE id > {inbox_start}
),
{type_effects}
SELECT type, status, sum(jobs)::bigint, sum(entered)::bigint, (SELECT count(*) FROM tail)
FROM (
    SELECT type, status, jobs, entered FROM {schema}.type_counter
    UNION ALL
    SELECT type, status, jobs, entered FROM type_effect
) AS part
GROUP BY type, status
