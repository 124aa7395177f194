-- oldest code: 6
-- Jobs that wait for their next attempt, by type. Few have any, and no other index tells them from delayed ones.
-- Written with OR and not IN: see the CHECK of the table.

CREATE INDEX job_retrying ON job (type, seq) WHERE status = 'failed_retry' OR status = 'unknown_retry';
