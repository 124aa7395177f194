-- Each priority from its floor on, most urgent first; after those, what lies a little way below (see floors.py). Before the
-- floor come the late jobs that lie below it, each by itself: a scan that began at the first of them would walk over every
-- dead entry between. If there are too many of those, or if the clock has gone back behind the floor, a claim begins at
-- the lowest place. The spans never overlap, but for late jobs below the floor, which those that scan back leave out.
FROM moment
    CROSS JOIN LATERAL (
        SELECT lane.priority, lane.is_back, part.low_at, part.low_seq, part.high_at, part.high_seq
        FROM unnest(
            %(priorities)s::smallint[], %(floor_ats)s::bigint[], %(floor_seqs)s::bigint[], %(are_back)s::boolean[]
        ) AS lane (priority, floor_at, floor_seq, is_back)
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN lane.floor_at >= moment.now OR (SELECT count(*) >= %(most_late)s::bigint FROM late) THEN {lowest}
                ELSE LEAST(lane.floor_at, moment.now - %(recent)s::bigint)
            END
        ) AS start (at)
        CROSS JOIN LATERAL (
            SELECT start.at, CASE WHEN start.at < lane.floor_at THEN 0 ELSE lane.floor_seq END
        ) AS low (at, seq)
        CROSS JOIN LATERAL (
            SELECT
                1,
                CASE WHEN lane.is_back THEN LEAST(low.at, moment.now - %(scan_back)s::bigint) ELSE low.at END,
                CASE WHEN lane.is_back THEN 0 ELSE low.seq END,
                CASE WHEN lane.is_back THEN low.at ELSE {highest} END,
                CASE WHEN lane.is_back THEN low.seq ELSE {highest} END
            UNION ALL
            SELECT 0, late.order_at, late.seq - 1, late.order_at, late.seq
            FROM late
            WHERE NOT lane.is_back
              AND late.priority = lane.priority
              AND {is_its_type}
              AND (late.order_at, late.seq) <= (low.at, low.seq)
        ) AS part (part_order, low_at, low_seq, high_at, high_seq)
        ORDER BY lane.is_back, lane.priority, part.part_order, part.low_at, part.low_seq
        OFFSET 0
    ) AS span
