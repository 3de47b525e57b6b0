-- Peak memory of the host process by target, over the cells that passed; while running only where all of them have it. MiB.
SELECT
    target, column_isolation AS isolation, column_dtype AS dtype, size,
    count(*) AS cells, avg(peak_mb) AS mean_mb, min(peak_mb) AS min_mb, max(peak_mb) AS max_mb,
    CASE WHEN count(run_peak_mb) = count(*) THEN avg(run_peak_mb) END AS mean_run_mb,
    avg(delta_mb) AS mean_delta_mb, max(device_peak_mb) AS max_device_mb,
    arg_max(model, (peak_mb, -position)) AS most
FROM report_cells
WHERE status = 'pass' AND peak_mb IS NOT NULL
GROUP BY target, column_isolation, column_dtype, size
ORDER BY min(position), size;
