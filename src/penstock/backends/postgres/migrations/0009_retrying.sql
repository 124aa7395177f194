-- oldest code: 8
--
-- Jobs that wait for their next attempt, by type. Few have any, and no other index tells them from delayed ones.
CREATE INDEX job_retrying ON {schema}.job (type, seq) WHERE status IN ('failed_retry', 'unknown_retry');
