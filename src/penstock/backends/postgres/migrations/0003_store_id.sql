-- oldest code: 1
--
-- What tells this store from every other one, wherever it is moved to. Readers of many stores name their rows by it.
ALTER TABLE {schema}.control ADD COLUMN store_id text COLLATE "C" NOT NULL
    DEFAULT replace(gen_random_uuid()::text, '-', '');
