-- Complete jobs by their numbers that this process claimed and that did not change since. A job's `n` rises with every
-- change: while it is 2, its first claim was the last thing that happened to it.
UPDATE OR FAIL job
SET {complete_set}
WHERE seq IN (SELECT value FROM json_each(?1)) AND n = 2 AND status = 'running' AND fan = 0
