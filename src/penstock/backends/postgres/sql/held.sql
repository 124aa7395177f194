-- The jobs in flight, of one assignee or of all: those known to this process that still are, and those claimed since the
-- floor (see floors.InFlight). The index is by the time of the claim, so that the scan begins behind the dead entries of
-- what was claimed before.
held AS MATERIALIZED (
    SELECT job.*
    FROM unnest(%(known)s::bigint[]) AS known (seq)
    -- Each job is looked up by its number: OFFSET is a fence for the planner, and IS TRUE keeps the index of what is in
    -- flight from fitting.
    CROSS JOIN LATERAL (
        SELECT seq, status, owner, assigned_at, lease_until, deadline_at, visibility
        FROM {schema}.job
        WHERE job.seq = known.seq AND (job.status IN ('running', 'cancelling')) IS TRUE AND {of_whom}
        OFFSET 0
    ) AS job
    UNION
    SELECT seq, status, owner, assigned_at, lease_until, deadline_at, visibility
    FROM {schema}.job
    WHERE job.status IN ('running', 'cancelling') AND {of_whom} AND {since}
)
