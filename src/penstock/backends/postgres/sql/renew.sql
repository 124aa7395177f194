-- Renew the leases of an assignee's jobs in flight and count them; answers besides as lost.sql does.
WITH {held},
locked AS MATERIALIZED (
    SELECT job.seq, job.lease_until, job.visibility
    FROM {schema}.job
    WHERE job.seq = ANY(ARRAY(SELECT held.seq FROM held))
      -- Written so that the index of what is in flight does not fit: the job is looked up by its number.
      AND (job.status IN ('running', 'cancelling')) IS TRUE
      AND job.assignee_id = %(assignee_id)s
    ORDER BY job.seq
    FOR UPDATE
),
renewed AS (
    UPDATE {schema}.job
    -- From when the row was locked on, not from when it was first wanted.
    SET lease_until = COALESCE(%(now)s::bigint, {now}) + locked.visibility
    FROM locked
    WHERE job.seq = locked.seq AND locked.lease_until IS NOT NULL
)
SELECT (SELECT count(*) FROM locked), ARRAY(SELECT held.seq FROM held), pg_current_snapshot()::text
