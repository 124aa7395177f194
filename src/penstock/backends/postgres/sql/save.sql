-- Write jobs that made a journaled step, its journal row, and the ready set by tag.
-- The rows are locked by this transaction, so what `was` and `old` read is what the update replaces.
WITH given AS MATERIALIZED (
    SELECT {columns}, ordinal
    FROM ROWS FROM (json_to_recordset(%(rows)s::json) AS ({typed_columns}))
        WITH ORDINALITY AS r ({columns}, ordinal)
),
was AS MATERIALIZED (
    SELECT tag COLLATE "C" AS tag, job.priority, job.order_at, job.seq
    FROM given
    JOIN {schema}.job ON job.seq = given.seq
    CROSS JOIN LATERAL json_array_elements_text(job.tags::json) AS tag
    -- Written so that no index of the ready set fits: the job is looked up by its number.
    WHERE job.gate IS NOT DISTINCT FROM 0 AND job.tags <> '[]'
),
becomes AS MATERIALIZED (
    SELECT tag COLLATE "C" AS tag, given.priority, given.order_at, given.seq
    FROM given
    CROSS JOIN LATERAL json_array_elements_text(given.tags::json) AS tag
    WHERE given.gate = 0 AND given.tags <> '[]'
),
changed AS (
    UPDATE {schema}.job
    SET {save_set},
        late = COALESCE(given.gate = 0 AND given.order_at <> given.updated_at, false),
        late_at = given.updated_at
    FROM given
    WHERE job.seq = given.seq
),
gone AS (
    DELETE FROM {schema}.ready_tag
    USING (SELECT tag, priority, order_at, seq FROM was EXCEPT SELECT tag, priority, order_at, seq FROM becomes) AS old
    WHERE ready_tag.tag = old.tag
      AND ready_tag.priority = old.priority
      AND ready_tag.order_at = old.order_at
      AND ready_tag.seq = old.seq
),
come AS (
    INSERT INTO {schema}.ready_tag (tag, priority, order_at, seq)
    SELECT tag, priority, order_at, seq FROM becomes
    EXCEPT
    SELECT tag, priority, order_at, seq FROM was
)
INSERT INTO {schema}.journal_inbox ({step_entry}, {end_entry}, tags_before)
SELECT {step_entry_values}, {end_entry_if_ended}, CASE WHEN step.verb = 'update' THEN old.tags END
FROM given AS step
JOIN {schema}.job AS old ON old.seq = step.seq
CROSS JOIN LATERAL (
    SELECT step.from_status IN ('running', 'cancelling') AND step.status NOT IN ('running', 'cancelling')
) AS attempt (has_ended)
ORDER BY step.ordinal
