-- The fastest hardware for each workload in each precision, if at least two targets were measured on one machine. Software and
-- emulation are not ranked. `tied` lists the others whose interval overlaps the fastest one's: the difference is not significant.
-- The speed-up over cpu in float32 is given only for full-size models, if the intervals do not overlap and neither was disturbed.
WITH measured AS (
    SELECT
        *,
        first_value(coalesce(ci_high_ms, p50_ms)) OVER faster AS best_high_ms,
        row_number() OVER faster AS nth,
        count(*) OVER (PARTITION BY model, size, dtype, batch, sequence_length, threads, new_tokens, isolation, host) AS rivals
    FROM report_cells
    WHERE status = 'pass' AND execution = 'hardware' AND p50_ms IS NOT NULL AND workload IS NOT NULL
    WINDOW faster AS (
        PARTITION BY model, size, dtype, batch, sequence_length, threads, new_tokens, isolation, host ORDER BY p50_ms, position
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    )
)
SELECT
    model, size, dtype, batch, sequence_length, threads, new_tokens, isolation,
    arg_min(target, nth) AS target,
    min(p50_ms) AS p50_ms,
    max(CASE WHEN nth = 1 AND size = 'full' AND speed_differs AND NOT speed_contended THEN speed_up END) AS speed_up,
    coalesce(list(target ORDER BY nth) FILTER (WHERE nth > 1 AND coalesce(ci_low_ms, p50_ms) <= best_high_ms), []) AS tied,
    bool_or(coalesce(contended, false)) AS contended
FROM measured
WHERE rivals > 1
GROUP BY model, size, dtype, batch, sequence_length, threads, new_tokens, isolation, host
ORDER BY min(position), host;
