-- oldest code: 8
--
-- What people look at: jobs by type and status, and what each process takes. Older code does not keep these counts.
-- `entered` is how often a job ever came into the status. Both are of the journal up to `fold.seq`.
CREATE TABLE {schema}.type_counter (
    type    text   COLLATE "C" NOT NULL,
    status  text   COLLATE "C" NOT NULL,
    jobs    bigint NOT NULL,
    entered bigint NOT NULL,
    PRIMARY KEY (type, status)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.1,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

-- Nobody may fold between the look at `fold` and the commit.
LOCK TABLE {schema}.fold IN EXCLUSIVE MODE;

-- What is stored, less what the journal's tail will add.
INSERT INTO {schema}.type_counter (type, status, jobs, entered)
SELECT type, status, sum(amount), sum(amount)
FROM (
    SELECT type, status, count(*) AS amount FROM {schema}.job GROUP BY type, status
    UNION ALL
    SELECT tail.type, effect.status, -sum(effect.amount)
    FROM (
        SELECT type, verb, from_status, status
        FROM {schema}.journal
        WHERE seq > (SELECT seq FROM {schema}.fold)
        UNION ALL
        SELECT type, verb, from_status, status FROM {schema}.journal_inbox
    ) AS tail
    CROSS JOIN LATERAL (
        VALUES (tail.status, CASE WHEN tail.verb IN ('delete', 'cleanup') THEN 0 ELSE 1 END), (tail.from_status, -1)
    ) AS effect (status, amount)
    WHERE effect.status IS NOT NULL
    GROUP BY tail.type, effect.status
) AS part
GROUP BY type, status
HAVING sum(amount) <> 0;

ALTER TABLE {schema}.owner
    ADD COLUMN opened_at bigint,
    ADD COLUMN intakes text COLLATE "C" NOT NULL DEFAULT '[]';
