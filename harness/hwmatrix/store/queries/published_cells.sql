-- Every executed cell of a database with the columns that a snapshot keeps: its identity, its verdict, its speed, its peaks (MiB), and, in
-- full size, its model as the run's plan describes it. A cell that was not executed is not evidence for other machines. timed: there were
-- enough samples for an interval.
SELECT
    m.model, m.hub_id, m.architecture, m.family, m.size, m.target, m.backend, m.dtype, m.batch, m.sequence_length, m.threads,
    m.execution, m.status, m.level, m.on_target, m.p50_ms, m.speed_up, m.speed_differs, m.load_ms, m.load_peak_mb, m.peak_mb,
    m.device_peak_mb, m.parameters, m.error_type, m.message, m.isolation, m.host, m.run_id, m.started_at, m.command, m.cell_key,
    CASE WHEN m.size = 'full' THEN CAST(d.plan AS VARCHAR) END AS plan, m.precision, m.relative_error, m.ci_low_ms, m.ci_high_ms,
    m.new_tokens, m.batch / nullif(m.tpot_ms, 0) * 1000 AS tokens_s, m.own_speed_up, m.samples, m.converged, m.contended, h.processor, h.instructions, m.ci_low_ms IS NOT NULL AS timed
FROM matrix m
LEFT JOIN machines h USING (cell_id)
LEFT JOIN planned_models d USING (run_id, model, size, batch, sequence_length)
WHERE m.level IS NOT NULL
ORDER BY m.started_at DESC, m.run_id DESC, m.position, m.cell_key;
