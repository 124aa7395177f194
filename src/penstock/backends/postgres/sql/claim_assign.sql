-- Begin an attempt of each picked job, journal it, and remove it from the ready set by tag.
claimed AS (
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
        SELECT had.tag, claimed.priority, claimed.order_at, claimed.seq
        FROM claimed
        CROSS JOIN LATERAL json_array_elements_text(claimed.tags::json) AS had (tag)
        WHERE claimed.tags <> '[]'
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
    FROM claimed AS step
    ORDER BY step.priority, step.order_at, step.seq
)
-- Only what a first claim needs; a job with a past, or with something unusual, is read whole afterwards.
SELECT
    moment.now, pg_current_xact_id_if_assigned()::text, moment.is_due,
    answer.*,
    -- Late jobs from before this time need not be read again.
    (SELECT CASE WHEN count(*) >= %(most_late)s::bigint THEN {lowest} ELSE min(late.late_at) END FROM late),
    moment.is_withheld
FROM moment
LEFT JOIN (
    SELECT
        claimed.seq, claimed.n, claimed.order_at, claimed.from_status,
        claimed.is_usual
            AND NOT EXISTS (SELECT FROM {schema}.result WHERE result.seq = claimed.seq)
            AND NOT EXISTS (SELECT FROM {schema}.checkpoint WHERE checkpoint.seq = claimed.seq),
        payload.data, {first_columns}
    FROM claimed
    LEFT JOIN {schema}.payload ON payload.seq = claimed.seq
) AS answer ON true
ORDER BY answer.priority, answer.order_at, answer.seq
