-- Latency by architecture on each target and machine, over the models that passed: of one workload each. Tiny models only if no full-size one
-- was timed. Without emulators, whose time is not a speed.
SELECT
    architecture, target, column_isolation AS isolation, column_dtype AS dtype, size, workload, host, any_value(processor) AS processor, threads,
    count(DISTINCT model) AS models, avg(p50_ms) AS mean_ms, min(p50_ms) AS min_ms, max(p50_ms) AS max_ms
FROM (
    SELECT * FROM report_cells
    WHERE status = 'pass' AND p50_ms IS NOT NULL AND execution <> 'emulated' AND workload IS NOT NULL
    QUALIFY size = 'full' OR NOT bool_or(size = 'full') OVER ()
)
GROUP BY architecture, target, column_isolation, column_dtype, size, workload, host, threads
ORDER BY architecture, min(position), target, workload, host;
