-- The evidence on every model: for each model, size, target and settings the newest execution on each machine, or why the cell
-- was not executed. Cells that were planned but never tried are not evidence. tokens_s: tokens of all samples per second, after the first.
SELECT
    m.model, m.hub_id, m.architecture, m.family, m.size, m.target, m.backend, m.dtype, m.batch, m.sequence_length, m.threads,
    m.execution, m.status, m.level, m.on_target, m.p50_ms, m.speed_up, m.speed_differs, m.load_ms, m.peak_mb, m.device_peak_mb,
    m.parameters, m.error_type, m.message, m.isolation, m.host, m.run_id, m.started_at, m.command,
    m.precision, m.relative_error, m.ci_low_ms, m.ci_high_ms,
    m.new_tokens, m.batch / nullif(m.tpot_ms, 0) * 1000 AS tokens_s, m.own_speed_up, m.samples, m.converged, m.contended, h.processor, h.instructions
FROM matrix m
LEFT JOIN machines h USING (cell_id)
JOIN runs r USING (run_id)
WHERE m.status <> 'not_run'
QUALIFY row_number() OVER (
    PARTITION BY m.model, m.hub_id, m.size, m.target, m.backend, m.dtype, m.batch, m.sequence_length, m.threads, m.new_tokens, m.isolation, m.host
    ORDER BY r.created_at DESC, m.run_id DESC, m.cell_key
) = 1
ORDER BY r.created_at DESC, m.run_id, m.position, m.cell_key;
