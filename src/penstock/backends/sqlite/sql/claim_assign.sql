-- Begin an attempt of each selected job.
UPDATE OR FAIL job
SET {claim_set}
WHERE seq IN (SELECT value FROM json_each(:seqs))
