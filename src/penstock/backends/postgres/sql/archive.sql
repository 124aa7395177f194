-- Remove the histories that end among the next journal rows, whole, if they may go; count what went.
-- The newest row stays, so that its number is not given again; so does what is not folded into the counters yet.
WITH bound AS MATERIALIZED (
    SELECT LEAST(
        (SELECT COALESCE(max(seq), 0) - 1 FROM {schema}.journal),
        (SELECT seq FROM {schema}.fold),
        (SELECT min(seq) FROM {schema}.consumer)
    ) AS seq
),
portion AS MATERIALIZED (
    SELECT journal.seq, journal.job_seq, journal.n, journal.status, journal.recorded_at
    FROM {schema}.journal
    WHERE journal.seq > %(after)s AND journal.seq <= (SELECT seq FROM bound)
    ORDER BY journal.seq
    LIMIT %(limit)s
),
ended AS MATERIALIZED (
    SELECT job_seq
    FROM portion
    WHERE status = ANY(%(final)s::text[])
      AND recorded_at <= %(before)s
      AND NOT EXISTS (
          SELECT FROM {schema}.journal AS later
          WHERE later.job_seq = portion.job_seq AND later.n > portion.n
      )
),
gone AS (
    DELETE FROM {schema}.journal
    USING ended
    WHERE journal.job_seq = ended.job_seq
    RETURNING journal.seq, journal.n
),
counted AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE n = 1) AS histories, count(*) AS rows, COALESCE(max(seq), 0) AS upto FROM gone
),
added AS (
    UPDATE {schema}.archive
    SET histories = archive.histories + counted.histories,
        rows = archive.rows + counted.rows,
        upto = GREATEST(archive.upto, counted.upto)
    FROM counted
    WHERE counted.rows > 0
)
SELECT
    counted.histories,
    counted.rows,
    counted.upto,
    (SELECT max(seq) FROM portion),
    (SELECT min(recorded_at) FROM portion)
FROM counted
