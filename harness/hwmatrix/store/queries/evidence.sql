-- Every execution on record, the newest run first, or why the cell was not executed: its identity, verdict, speed and peaks (MiB), and its
-- model as the run's plan describes it. Cells that were planned but never tried are not evidence. tokens_s: tokens of all samples per second,
-- after the first.
SELECT
    m.model, m.hub_id, m.architecture, m.family, m.size, m.target, m.backend, m.dtype, m.batch, m.sequence_length, m.threads,
    m.execution, m.status, m.level, m.p50_ms, m.speed_up, m.speed_differs, m.load_peak_mb, m.peak_mb, m.device_peak_mb,
    m.parameters, m.error_type, m.message, m.isolation, m.host, m.run_id, m.started_at, m.cell_key, CAST(d.plan AS VARCHAR) AS plan,
    m.precision, m.relative_error, m.ci_low_ms, m.ci_high_ms,
    m.new_tokens, m.batch / nullif(m.tpot_ms, 0) * 1000 AS tokens_s, m.own_speed_up, m.samples, m.converged, m.contended, h.processor, h.instructions
FROM matrix m
JOIN runs r USING (run_id)
LEFT JOIN machines h USING (cell_id)
LEFT JOIN planned_models d USING (run_id, model, size, batch, sequence_length)
WHERE m.status <> 'not_run'
ORDER BY r.created_at DESC, m.run_id, m.position, m.cell_key;
