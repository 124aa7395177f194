-- Complete the jobs in flight whose end affects no other job: no key, no dependents, and the reporting attempt is the
-- current one. A null attempt is any. `found` (complete_one, complete_many) locks them, and only then the time is read. The
-- last column is whether there are such jobs among those named.
WITH {found}
moment AS MATERIALIZED (
    SELECT COALESCE(%(now)s::bigint, (SELECT max(locked_at) FROM found), {now}) AS now
),
done AS (
    UPDATE {schema}.job
    SET {complete_set}
    FROM found
    CROSS JOIN moment
    WHERE job.seq = found.seq
    RETURNING {job_columns}, job.attempt_ready_at, found.owner AS holder
),
journaled AS (
    INSERT INTO {schema}.journal_inbox ({step_entry}, {end_entry})
    SELECT {step_entry_values}, {end_entry_values}
    FROM done AS step
    ORDER BY step.seq
)
SELECT
    moment.now, pg_current_xact_id()::text, true,
    done.seq, done.n, done.id, done.assignee_id,
    EXISTS (SELECT FROM {schema}.result WHERE result.seq = done.seq),
    done.holder IS NOT NULL AND done.holder <> ALL(%(owners)s::text[]),
    done.type, done.tags, done.from_status, done.attempt,
    {has_simple}
FROM moment
LEFT JOIN done ON true
