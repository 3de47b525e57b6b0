-- The executions of some cells over all runs, oldest first. A parameter that is NULL restricts nothing.
SELECT
    m.run_id, l.release, r.created_at, r.commit_id, r.hwmatrix_version,
    m.model, m.size, m.target, m.dtype, m.batch, m.sequence_length, m.threads, m.new_tokens, m.column_isolation AS isolation, m.execution, m.host,
    m.status, m.level, m.error_type, m.message, m.on_target, m.p50_ms, m.ci_low_ms, m.ci_high_ms, m.samples, m.contended, m.speed_up,
    m.delta_mb, m.peak_mb, m.device_peak_mb, m.image_digest, CAST(m.versions AS VARCHAR) AS versions
FROM matrix m JOIN runs r USING (run_id) LEFT JOIN releases l USING (run_id)
WHERE ($model IS NULL OR m.model = $model) AND ($target IS NULL OR m.target = $target)
ORDER BY m.model, m.target, m.size, m.dtype, m.batch, m.sequence_length, m.threads, m.new_tokens, m.column_isolation, r.created_at, r.run_id;
