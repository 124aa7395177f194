-- The types of ready jobs, and a null at the end. From one value of the index to the next: the cost is that of the different
-- types, not of the jobs.
-- `gate <= 0` is `gate = 0`, said so that of all indexes only job_ready_type fits.
ready_type (value) AS (
    SELECT (SELECT type FROM {schema}.job WHERE gate <= 0 ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (
        SELECT type FROM {schema}.job WHERE gate <= 0 AND type > ready_type.value ORDER BY type LIMIT 1
    )
    FROM ready_type
    WHERE ready_type.value IS NOT NULL
)
