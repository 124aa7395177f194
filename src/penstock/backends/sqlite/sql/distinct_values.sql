-- From one value of an index to the next: the cost is that of the different values, not of the rows.
WITH RECURSIVE found (value) AS (
    SELECT (SELECT {column} FROM {source} ORDER BY {column} LIMIT 1)
    UNION ALL
    SELECT (SELECT {column} FROM {source} AND {column} > found.value ORDER BY {column} LIMIT 1)
    FROM found
    WHERE found.value IS NOT NULL
    LIMIT ?
)
SELECT value
FROM found
WHERE value IS NOT NULL
