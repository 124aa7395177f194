-- What each row of `tail` (journal rows) does to the counts of the tags it names. An update may have changed the tags.
-- Status '' counts retries.
effect AS (
    SELECT tags, status, 1 AS amount
    FROM tail
    WHERE verb NOT IN ('delete', 'cleanup')
    UNION ALL
    SELECT COALESCE(tags_before, tags), from_status, -1
    FROM tail
    WHERE from_status IS NOT NULL
    UNION ALL
    SELECT tags, '', CASE WHEN from_status IS NULL OR verb = 'update' THEN retry_count ELSE 1 END
    FROM tail
    WHERE (from_status IS NULL AND retry_count > 0)
       OR verb = 'update'
       OR verb IN ('fail', 'time_out', 'release', 'stop_with_retry')
    UNION ALL
    SELECT COALESCE(tags_before, tags), '', -retry_count
    FROM tail
    WHERE verb IN ('delete', 'cleanup', 'update') AND retry_count > 0
)
