-- The counts of one tag ('' is every job): what is folded, and the journal rows after that, numbered or not.
WITH tail AS MATERIALIZED (
    SELECT verb, from_status, status, retry_count, tags, tags_before
    FROM {schema}.journal
    WHERE seq > (SELECT seq FROM {schema}.fold)
    UNION ALL
    SELECT verb, from_status, status, retry_count, tags, tags_before
    FROM {schema}.journal_inbox
    WHERE id > {inbox_start}
),
{effects}
SELECT status, sum(amount)::bigint, (SELECT count(*) FROM tail)
FROM (
    SELECT status, amount FROM {schema}.counter WHERE tag = %(tag)s
    UNION ALL
    SELECT status, sum(amount)
    FROM effect
    -- The search for the quoted tag is quick and never misses; only its finds are parsed.
    WHERE CASE WHEN %(tag)s = '' THEN true
               WHEN strpos(tags, %(quoted)s) = 0 THEN false
               ELSE tags::jsonb ? %(tag)s END
    GROUP BY status
) AS part
GROUP BY status
