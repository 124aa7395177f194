-- Write where waiting jobs stand now: no journal row, but the ready set by tag follows.
WITH given AS MATERIALIZED (
    SELECT seq, gate, ready_at, unmet, fan
    FROM json_to_recordset(%(rows)s::json)
        AS r (seq bigint, gate smallint, ready_at bigint, unmet integer, fan smallint)
),
was AS MATERIALIZED (
    SELECT job.seq, job.priority, job.order_at, job.tags, job.gate
    FROM given
    JOIN {schema}.job ON job.seq = given.seq
    WHERE job.tags <> '[]'
),
changed AS (
    UPDATE {schema}.job
    SET gate = given.gate,
        ready_at = given.ready_at,
        unmet = given.unmet,
        fan = given.fan,
        late = COALESCE(given.gate = 0 AND job.order_at <> %(now)s, false),
        late_at = %(now)s
    FROM given
    WHERE job.seq = given.seq
),
gone AS (
    DELETE FROM {schema}.ready_tag
    -- OFFSET keeps the two apart: else the planner looks rows up without their tag, the first column of the key.
    USING (
        SELECT had.tag, was.priority, was.order_at, was.seq
        FROM was
        JOIN given USING (seq)
        CROSS JOIN LATERAL json_array_elements_text(was.tags::json) AS had (tag)
        WHERE was.gate = 0 AND given.gate IS DISTINCT FROM 0
        OFFSET 0
    ) AS old
    WHERE ready_tag.tag = old.tag
      AND ready_tag.priority = old.priority
      AND ready_tag.order_at = old.order_at
      AND ready_tag.seq = old.seq
)
INSERT INTO {schema}.ready_tag (tag, priority, order_at, seq)
SELECT tag, was.priority, was.order_at, was.seq
FROM was
JOIN given USING (seq)
CROSS JOIN LATERAL json_array_elements_text(was.tags::json) AS tag
WHERE given.gate = 0 AND was.gate IS DISTINCT FROM 0
