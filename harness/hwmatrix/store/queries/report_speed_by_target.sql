-- Latency by target over the models that passed, and the geometric mean of the speed-up over the models that cpu ran as well.
-- Without emulators, whose time is not a speed.
-- Targets may support different models, so compare them by the speed-up, not by averages.
SELECT
    target, column_isolation AS isolation, column_dtype AS dtype, size, execution,
    count(*) AS cells,
    count(*) FILTER (WHERE contended) AS contended,
    avg(p50_ms) AS mean_ms,
    min(p50_ms) AS min_ms,
    max(p50_ms) AS max_ms,
    arg_min(model, (p50_ms, position)) AS fastest,
    arg_max(model, (p50_ms, -position)) AS slowest,
    CASE WHEN any_value(backend) <> 'cpu' THEN exp(avg(ln(speed_up))) END AS speed_up,
    count(speed_up) AS compared
FROM report_cells
WHERE status = 'pass' AND p50_ms > 0 AND execution <> 'emulated'
GROUP BY target, column_isolation, column_dtype, size, execution
ORDER BY min(position), size;
