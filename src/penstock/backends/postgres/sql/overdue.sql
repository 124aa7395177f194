-- Jobs in flight without an owner that run too long, as lost.sql answers.
WITH {held}
SELECT
    ARRAY(
        SELECT held.seq
        FROM held
        WHERE held.deadline_at <= %(before)s AND held.status = 'running' AND held.owner IS NULL
        ORDER BY held.deadline_at
        LIMIT %(limit)s
    ),
    ARRAY(SELECT held.seq FROM held),
    pg_current_snapshot()::text
