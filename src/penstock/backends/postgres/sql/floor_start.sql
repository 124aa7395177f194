-- The place after which a statement that is given `Floor.parameters` begins.
(
    SELECT min(place) FROM (
        SELECT %(floor)s::bigint
        UNION ALL
        SELECT straggler.place
        FROM unnest(%(xids)s::text[], %(places)s::bigint[]) AS straggler (xid, place)
        WHERE pg_visible_in_snapshot(straggler.xid::xid8, pg_current_snapshot())
    ) AS start (place)
)
