-- Store a few new jobs. Ids that are stored already are left out, and missing in the answer.
WITH stored AS (
    INSERT INTO {schema}.job ({columns}, late)
    SELECT {columns}, COALESCE(gate = 0 AND (%(is_long)s OR order_at <> updated_at), false)
    FROM ROWS FROM (json_to_recordset(%(rows)s::json) AS ({typed_columns})) WITH ORDINALITY AS r ({columns}, ordinal)
    ORDER BY ordinal
    ON CONFLICT (id) DO NOTHING
    RETURNING {job_columns}
),
{tagging}
{journal_new}
SELECT id FROM stored
