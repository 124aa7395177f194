-- The first journal row of each job in `stored`.
journaled AS (
    INSERT INTO {schema}.journal_inbox ({first_entry})
    SELECT {first_entry_values}
    FROM stored
    ORDER BY stored.seq
)
