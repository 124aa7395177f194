-- The types and the tags of ready jobs, at most so many of each; the tags are found as the types are.
WITH RECURSIVE {ready_type},
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
