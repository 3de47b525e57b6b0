-- Peak memory of the host process by target and machine, over the models that passed one forward pass; while running only where all of them
-- have it. Tiny models only if no full-size one was measured. MiB.
SELECT
    target, column_isolation AS isolation, column_dtype AS dtype, size, host, any_value(processor) AS processor,
    count(DISTINCT model) AS models, avg(peak_mb) AS mean_mb, min(peak_mb) AS min_mb, max(peak_mb) AS max_mb,
    CASE WHEN count(run_peak_mb) = count(*) THEN avg(run_peak_mb) END AS mean_run_mb,
    avg(delta_mb) AS mean_delta_mb, max(device_peak_mb) AS max_device_mb,
    arg_max(model, (peak_mb, -position)) AS most
FROM (
    SELECT * FROM report_cells WHERE status = 'pass' AND peak_mb IS NOT NULL AND workload = 'forward'
    QUALIFY size = 'full' OR NOT bool_or(size = 'full') OVER ()
)
GROUP BY target, column_isolation, column_dtype, size, host
ORDER BY min(position), target, host;
