-- The retries with changed settings of each failed cell of the report, since its latest execution, in order of time.
SELECT
    a.cell_key, a.attempt_key, CAST(a.adaptation AS VARCHAR) AS adaptation, a.status, a.stage, a.dtype, a.batch, a.preparation, a.replaced, a.on_target,
    a.placement_detail, a.relative_error, a.max_error, a.cosine, a.peak_mb, a.error_type, a.severity, a.message, a.started_at, a.command,
    a.isolation, a.image_digest, a.versions
FROM adaptations a JOIN report_cells c USING (run_id, cell_key)
WHERE a.started_at >= c.started_at
ORDER BY c.position, a.cell_key, a.started_at, a.attempt_key;
