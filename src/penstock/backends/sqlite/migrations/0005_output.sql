-- oldest code: 1
-- What jobs have printed; the latest attempt's.

CREATE TABLE output (seq INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;

CREATE TRIGGER job_deleted_with_output AFTER DELETE ON job BEGIN
    DELETE FROM output WHERE seq = OLD.seq;
END;
