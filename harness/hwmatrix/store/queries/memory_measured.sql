-- Every cell on record whose peak was measured, the newest first, with its model as the run's plan describes it. MiB.
-- Only what ran on its target counts; wrong numbers take as much memory as right ones.
SELECT
    r.run_id, r.cell_key, r.model, r.size, r.hub_id, r.target, r.backend, r.dtype, r.batch, r.sequence_length, r.threads, r.column_isolation AS isolation,
    r.started_at, r.load_peak_mb, r.peak_mb, r.device_peak_mb, r.parameters, CAST(d.plan AS VARCHAR) AS plan
FROM results r
LEFT JOIN planned_models d USING (run_id, model, size, batch, sequence_length)
WHERE r.new_tokens = 0 AND r.status IN ('pass', 'mismatch') AND coalesce(r.peak_mb, r.device_peak_mb) IS NOT NULL
ORDER BY r.started_at DESC, r.run_id, r.position;
