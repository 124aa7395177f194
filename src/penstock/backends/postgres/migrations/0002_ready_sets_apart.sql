-- oldest code: 1
--
-- `gate` is a whole number and never below 0, so each condition still means `gate = 0`. But now a claim can be written so
-- that exactly one of the two indexes fits it: statistics from a moment when nothing was ready made both look alike, and
-- a claim by type then walked through the ready jobs of all types. Claims of older code may use both, as before.
DROP INDEX {schema}.job_ready;
DROP INDEX {schema}.job_ready_type;
CREATE INDEX job_ready ON {schema}.job (priority, order_at, seq) WHERE gate >= 0 AND gate < 1;
CREATE INDEX job_ready_type ON {schema}.job (type, priority, order_at, seq) WHERE gate <= 0;
