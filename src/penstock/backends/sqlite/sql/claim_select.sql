-- The jobs that a claim selects, in claim order, as one JSON array: `found` has the columns of each.
SELECT json_group_array(json_array({found_names}))
FROM (
    SELECT {found}
    FROM ({candidates}) AS candidate
    CROSS JOIN job ON job.seq = candidate.seq
    LEFT JOIN payload ON payload.seq = job.seq
    LEFT JOIN result ON result.seq = job.seq
    LEFT JOIN checkpoint ON checkpoint.seq = job.seq
    ORDER BY candidate.priority, candidate.order_at, candidate.seq)
