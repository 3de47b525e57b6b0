-- The 20 forward passes that added the most memory to their process, most demanding first. MiB.
SELECT
    model, size, dtype, batch, sequence_length, threads, new_tokens, target, column_isolation AS isolation,
    parameters, delta_mb, peak_mb, device_peak_mb
FROM report_cells
WHERE status = 'pass' AND workload = 'forward' AND coalesce(delta_mb, peak_mb) IS NOT NULL
ORDER BY coalesce(delta_mb, peak_mb) DESC, position
LIMIT 20;
