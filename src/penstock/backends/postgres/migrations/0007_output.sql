-- oldest code: 1
--
-- What jobs have printed; the latest attempt's.
CREATE TABLE {schema}.output (seq bigint PRIMARY KEY, data bytea NOT NULL) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
