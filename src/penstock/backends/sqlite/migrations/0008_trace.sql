-- oldest code: 1
-- The trace context of whoever submitted a job.

ALTER TABLE job ADD COLUMN trace TEXT;
