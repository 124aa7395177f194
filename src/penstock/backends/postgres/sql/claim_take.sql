-- Begin an attempt of each picked job, journal it, and take it out of the ready set by tag.
taken AS (
    UPDATE {schema}.job
    SET {claim_set},
        late = false
    FROM picked
    WHERE job.seq = picked.seq
    RETURNING {job_columns}, picked.is_usual
),
unready AS (
    DELETE FROM {schema}.ready_tag
    -- OFFSET keeps the two apart: else the planner looks rows up without their tag, the first column of the key.
    USING (
        SELECT had.tag, taken.priority, taken.order_at, taken.seq
        FROM taken
        CROSS JOIN LATERAL json_array_elements_text(taken.tags::json) AS had (tag)
        WHERE taken.tags <> '[]'
        OFFSET 0
    ) AS gone
    WHERE ready_tag.tag = gone.tag
      AND ready_tag.priority = gone.priority
      AND ready_tag.order_at = gone.order_at
      AND ready_tag.seq = gone.seq
),
journaled AS (
    INSERT INTO {schema}.journal_inbox ({step_entry})
    SELECT {step_entry_values}
    FROM taken AS step
    ORDER BY step.priority, step.order_at, step.seq
)
-- Only what a first claim needs; a job with a past, or with something unusual, is read whole afterwards.
SELECT
    moment.now, pg_current_xact_id_if_assigned()::text, moment.is_due,
    took.*,
    -- Which late jobs need not be looked at again: those before this time.
    (SELECT CASE WHEN count(*) >= %(most_late)s::bigint THEN {lowest} ELSE min(late.late_at) END FROM late),
    moment.is_withheld
FROM moment
LEFT JOIN (
    SELECT
        taken.seq, taken.n, taken.order_at, taken.from_status,
        taken.is_usual
            AND NOT EXISTS (SELECT FROM {schema}.result WHERE result.seq = taken.seq)
            AND NOT EXISTS (SELECT FROM {schema}.checkpoint WHERE checkpoint.seq = taken.seq),
        payload.data, {first_columns}
    FROM taken
    LEFT JOIN {schema}.payload ON payload.seq = taken.seq
) AS took ON true
ORDER BY took.priority, took.order_at, took.seq
