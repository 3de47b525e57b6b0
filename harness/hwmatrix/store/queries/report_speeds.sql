-- Times of each target in each precision on each machine, by workload: over the models that passed, never over cells of other batches, lengths,
-- threads or sizes. Tiny models only if no full-size one was timed. Without emulators, whose time is not a speed.
-- Speed-ups are of full-size models on hardware, geometric means over cpu in float32, and over the target's own float32: only where the
-- difference is real and neither of the two was disturbed (views.sql). faster + slower + alike + disturbed are the models that cpu ran too.
WITH timed AS (
    SELECT *, CASE WHEN size = 'full' AND execution = 'hardware' THEN speed_up END AS gain
    FROM report_cells
    WHERE status = 'pass' AND p50_ms > 0 AND execution <> 'emulated' AND workload IS NOT NULL
    QUALIFY size = 'full' OR NOT bool_or(size = 'full') OVER ()
)
SELECT
    target, column_isolation AS isolation, column_dtype AS dtype, size, execution, workload, new_tokens, threads, host,
    any_value(processor) AS processor,
    count(DISTINCT model) AS models,
    count(*) FILTER (WHERE contended) AS contended,
    avg(peak_mb) AS mean_mb, median(relative_error) FILTER (WHERE dtype <> 'float32') AS loss,
    avg(p50_ms) AS mean_ms, min(p50_ms) AS min_ms, max(p50_ms) AS max_ms,
    list(struct_pack(model := model, p50_ms := p50_ms) ORDER BY p50_ms, position)[:5] AS fastest,
    list(struct_pack(model := model, p50_ms := p50_ms) ORDER BY p50_ms DESC, position)[:5] AS slowest,
    exp(avg(ln(gain)) FILTER (WHERE speed_differs AND NOT speed_contended)) AS speed_up,
    count(gain) FILTER (WHERE speed_differs AND NOT speed_contended AND gain > 1) AS faster,
    count(gain) FILTER (WHERE speed_differs AND NOT speed_contended AND gain < 1) AS slower,
    count(gain) FILTER (WHERE NOT speed_differs AND NOT speed_contended) AS alike,
    count(gain) FILTER (WHERE speed_contended) AS disturbed,
    CASE WHEN size = 'full' THEN exp(avg(ln(own_speed_up))) END AS own_speed_up,
    count(own_speed_up) FILTER (WHERE size = 'full') AS own_compared
FROM timed
GROUP BY target, column_isolation, column_dtype, size, execution, workload, new_tokens, threads, host
ORDER BY min(position), target, dtype, workload, host;
