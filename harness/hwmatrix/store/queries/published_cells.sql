-- Every executed cell of a database with the columns that a snapshot keeps: its identity, its verdict, its speed, its peaks (MiB), and, in
-- full size, its model as the run's plan describes it. A cell that was not executed is not evidence for other machines. timed: there were
-- enough samples for an interval.
WITH described AS (
    SELECT run_id, json_extract_string(model, '$.name') AS model, json_extract_string(model, '$.size') AS size, model AS plan
    FROM (SELECT run_id, unnest(from_json(json_extract(plan, '$.models'), '["JSON"]')) AS model FROM runs)
)
SELECT
    m.model, m.hub_id, m.architecture, m.family, m.size, m.target, m.backend, m.dtype, m.batch, m.sequence_length, m.threads,
    m.execution, m.status, m.level, m.on_target, m.p50_ms, m.speed_up, m.speed_differs, m.load_ms, m.load_peak_mb, m.peak_mb,
    m.device_peak_mb, m.parameters, m.error_type, m.message, m.isolation, m.host, m.run_id, m.started_at, m.command, m.cell_key,
    CAST(d.plan AS VARCHAR) AS plan, m.precision, m.relative_error, m.ci_low_ms, m.ci_high_ms, m.ci_low_ms IS NOT NULL AS timed
FROM (FROM matrix UNION ALL BY NAME SELECT CAST(NULL AS VARCHAR) AS precision WHERE false) m  -- which databases before schema 8 lack
LEFT JOIN described d ON d.run_id = m.run_id AND d.model = m.model AND d.size = m.size AND m.size = 'full'
WHERE m.level IS NOT NULL AND m.new_tokens = 0
ORDER BY m.started_at DESC, m.run_id DESC, m.position, m.cell_key;
