-- Write a job that made a journaled step. Triggers write its journal row, its tags and the ready set by tag.
UPDATE OR FAIL job
SET {save_set}
WHERE seq = {saved_seq}
