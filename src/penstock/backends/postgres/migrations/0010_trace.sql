-- oldest code: 1
--
-- The trace context of whoever submitted a job.
ALTER TABLE {schema}.job ADD COLUMN trace text COLLATE "C";
