-- Renew the leases of an assignee's jobs in flight (of those named, where the attempt still holds) and count them.
WITH held AS MATERIALIZED (
    SELECT job.seq, job.lease_until, job.visibility
    FROM {schema}.job
    WHERE job.status IN ('running', 'cancelling')
      AND job.assignee_id = %(assignee_id)s
      AND (
          %(ids)s::text[] IS NULL
          OR EXISTS (
              SELECT FROM unnest(%(ids)s::text[], %(attempts)s::bigint[]) AS named (id, attempt)
              WHERE named.id = job.id AND named.attempt = job.attempt
          )
      )
    ORDER BY job.seq
    FOR UPDATE
),
renewed AS (
    UPDATE {schema}.job
    -- From when the row was locked on, not from when it was first wanted.
    SET lease_until = COALESCE(%(now)s::bigint, {now}) + held.visibility
    FROM held
    WHERE job.seq = held.seq AND held.lease_until IS NOT NULL
)
SELECT count(*) FROM held
