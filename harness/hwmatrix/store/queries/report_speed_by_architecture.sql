-- Latency by architecture on each target, over the models that passed. Without emulators, whose time is not a speed.
SELECT
    architecture, target, column_isolation AS isolation, column_dtype AS dtype, size,
    count(*) AS cells, avg(p50_ms) AS mean_ms, min(p50_ms) AS min_ms, max(p50_ms) AS max_ms
FROM report_cells
WHERE status = 'pass' AND p50_ms IS NOT NULL AND execution <> 'emulated'
GROUP BY architecture, target, column_isolation, column_dtype, size
ORDER BY architecture, size, min(position), target;
