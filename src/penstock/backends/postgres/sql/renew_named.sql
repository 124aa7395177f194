-- Renew the leases of the jobs named, where the attempt still holds, and count them.
WITH locked AS MATERIALIZED (
    SELECT job.seq, job.lease_until, job.visibility
    FROM {schema}.job
    WHERE job.id = ANY(%(ids)s::text[])
      -- Written so that the index of what is in flight does not fit: the job is looked up by its id.
      AND (job.status IN ('running', 'cancelling')) IS TRUE
      AND job.assignee_id = %(assignee_id)s
      AND EXISTS (
          SELECT FROM unnest(%(ids)s::text[], %(attempts)s::bigint[]) AS named (id, attempt)
          WHERE named.id = job.id AND named.attempt = job.attempt
      )
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
SELECT count(*) FROM locked
