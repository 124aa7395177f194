-- Add to the counters the journal rows up to %(upto)s that they do not know yet. Runs under the numbering lock.
WITH tail AS MATERIALIZED (
    SELECT type, verb, from_status, status, retry_count, tags, tags_before
    FROM {schema}.journal
    WHERE seq > (SELECT seq FROM {schema}.fold) AND seq <= %(upto)s
),
{effects},
{type_effects},
folded AS (
    UPDATE {schema}.fold SET seq = %(upto)s
),
typed AS (
    INSERT INTO {schema}.type_counter (type, status, jobs, entered)
    SELECT type, status, jobs, entered
    FROM type_effect
    WHERE jobs <> 0 OR entered <> 0
    ON CONFLICT (type, status) DO UPDATE
    SET jobs = type_counter.jobs + excluded.jobs, entered = type_counter.entered + excluded.entered
)
INSERT INTO {schema}.counter (tag, status, amount)
SELECT tag, status, sum(amount)
FROM (
    SELECT '' AS tag, status, amount FROM effect
    UNION ALL
    SELECT tag, status, amount
    FROM effect
    CROSS JOIN LATERAL json_array_elements_text(tags::json) AS tag
    WHERE tags <> '[]'
) AS part
GROUP BY tag, status
HAVING sum(amount) <> 0
ON CONFLICT (tag, status) DO UPDATE SET amount = counter.amount + excluded.amount
