-- How many callbacks wait, and how many were given up, each counted up to a bound.
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM delivery INDEXED BY delivery_due WHERE due_at IS NOT NULL LIMIT :most)),
    (SELECT count(*) FROM (
        SELECT 1 FROM delivery INDEXED BY delivery_given_up WHERE due_at IS NULL LIMIT :most))
