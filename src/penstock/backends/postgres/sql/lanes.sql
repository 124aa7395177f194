-- Each priority from its floor on, most urgent first; after those, what lies a little way below the floors (see
-- floors.py). A floor holds only while no ready job is late and the clock has not gone back behind it.
FROM moment
    CROSS JOIN unnest(
        %(priorities)s::smallint[], %(floor_ats)s::bigint[], %(floor_seqs)s::bigint[], %(are_back)s::boolean[]
    ) AS lane (priority, floor_at, floor_seq, is_back)
    CROSS JOIN LATERAL (
        SELECT (SELECT EXISTS (SELECT FROM {schema}.job WHERE gate = 0 AND late)) OR lane.floor_at >= moment.now
    ) AS floor (is_void)
    CROSS JOIN LATERAL (
        SELECT
            CASE
                WHEN floor.is_void THEN {lowest}
                WHEN lane.is_back THEN LEAST(lane.floor_at, moment.now - %(look_back)s::bigint)
                ELSE lane.floor_at
            END,
            CASE WHEN lane.is_back THEN 0 ELSE lane.floor_seq END,
            CASE WHEN lane.is_back THEN lane.floor_at ELSE {highest} END,
            CASE WHEN lane.is_back THEN lane.floor_seq ELSE {highest} END
    ) AS span (low_at, low_seq, high_at, high_seq)
