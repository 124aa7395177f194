-- The types and the tags of ready jobs, at most so many of each. From one value of the index to the next: the cost is that
-- of the different values, not of the jobs.
-- `gate <= 0` is `gate = 0`, said so that of all indexes only job_ready_type fits.
WITH RECURSIVE ready_type (value) AS (
    SELECT (SELECT type FROM {schema}.job WHERE gate <= 0 ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (
        SELECT type FROM {schema}.job WHERE gate <= 0 AND type > ready_type.value ORDER BY type LIMIT 1
    )
    FROM ready_type
    WHERE ready_type.value IS NOT NULL
),
ready_label (value) AS (
    SELECT (SELECT tag FROM {schema}.ready_tag ORDER BY tag LIMIT 1)
    UNION ALL
    SELECT (SELECT tag FROM {schema}.ready_tag WHERE tag > ready_label.value ORDER BY tag LIMIT 1)
    FROM ready_label
    WHERE ready_label.value IS NOT NULL
)
SELECT
    ARRAY(SELECT value FROM ready_type LIMIT %(limit)s),
    ARRAY(SELECT value FROM ready_label LIMIT %(limit)s)
