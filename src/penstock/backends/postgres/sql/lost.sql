-- Jobs in flight whose owner is lost, not yet locked; all jobs in flight, and what this statement could see.
WITH {held}
SELECT
    ARRAY(
        SELECT held.seq
        FROM held
        LEFT JOIN {schema}.owner ON owner.id = held.owner
        WHERE CASE
            WHEN held.owner IS NULL THEN held.lease_until <= %(now)s
            ELSE held.owner = ANY(%(gone)s::text[])
                OR owner.id IS NULL
                OR (
                    held.owner <> ALL(%(spared)s::text[])
                    AND GREATEST(owner.beat_at, held.assigned_at)
                        + LEAST(%(liveness)s, COALESCE(held.visibility, %(liveness)s)) <= %(now)s
                )
        END
        LIMIT %(limit)s
    ),
    ARRAY(SELECT held.seq FROM held),
    pg_current_snapshot()::text
