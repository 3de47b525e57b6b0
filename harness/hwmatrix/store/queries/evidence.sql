-- The evidence on every model: for each model, size, target and settings the newest execution on each machine, or why the cell
-- was not executed. Cells that were planned but never tried are not evidence.
SELECT
    m.model, m.hub_id, m.architecture, m.family, m.size, m.target, m.backend, m.dtype, m.batch, m.sequence_length, m.threads,
    m.execution, m.status, m.level, m.on_target, m.p50_ms, m.speed_up, m.speed_differs, m.load_ms, m.peak_mb, m.device_peak_mb,
    m.parameters, m.error_type, m.message, m.isolation, m.host, m.run_id, m.started_at, m.command,
    m.precision, m.relative_error, m.ci_low_ms, m.ci_high_ms
FROM (FROM matrix UNION ALL BY NAME SELECT CAST(NULL AS VARCHAR) AS precision WHERE false) m  -- which databases before schema 8 lack
JOIN runs r USING (run_id)
WHERE m.status <> 'not_run' AND m.new_tokens = 0
QUALIFY row_number() OVER (
    PARTITION BY m.model, m.hub_id, m.size, m.target, m.backend, m.dtype, m.batch, m.sequence_length, m.threads, m.isolation, m.host
    ORDER BY r.created_at DESC, m.run_id DESC, m.cell_key
) = 1
ORDER BY r.created_at DESC, m.run_id, m.position, m.cell_key;
