-- oldest code: 6
-- Jobs that wait for others, for their key's turn, or to be asked for by id. With the ready and the delayed ones they are
-- all that wait, so that these are found without a look at what has ended.

CREATE INDEX job_waiting ON job (seq) WHERE gate >= 2;
