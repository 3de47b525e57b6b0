-- Every executed cell of a database with the columns that a snapshot keeps: its identity, its verdict, its speed, its peaks (MiB), and, in
-- full size, its model as the run's plan describes it. A cell that was not executed is not evidence for other machines. timed: there were
-- enough samples for an interval.
WITH described AS (
    SELECT run_id, json_extract_string(model, '$.name') AS model, json_extract_string(model, '$.size') AS size, model AS plan
    FROM (SELECT run_id, unnest(from_json(json_extract(plan, '$.models'), '["JSON"]')) AS model FROM runs)
),
machines AS (  -- the processor on which each cell was executed
    SELECT
        c.cell_id, any_value(d.name) AS processor,
        array_to_string(list_sort(from_json(any_value(d.features) -> 'instructions', '["VARCHAR"]')), ' ') AS instructions
    FROM cells c JOIN detections d USING (shard_id)
    WHERE d.hardware_type = 'cpu' AND d.available
    GROUP BY c.cell_id
)
SELECT
    m.model, m.hub_id, m.architecture, m.family, m.size, m.target, m.backend, m.dtype, m.batch, m.sequence_length, m.threads,
    m.execution, m.status, m.level, m.on_target, m.p50_ms, CASE WHEN coalesce(m.cpu_dtype, 'float32') = 'float32' THEN m.speed_up END AS speed_up, m.speed_differs, m.load_ms, m.load_peak_mb, m.peak_mb,
    m.device_peak_mb, m.parameters, m.error_type, m.message, m.isolation, m.host, m.run_id, m.started_at, m.command, m.cell_key,
    CAST(d.plan AS VARCHAR) AS plan, m.precision, m.relative_error, m.ci_low_ms, m.ci_high_ms,
    m.new_tokens, m.batch / nullif(m.tpot_ms, 0) * 1000 AS tokens_s, m.own_speed_up, m.samples, m.converged, m.contended, h.processor, h.instructions, m.ci_low_ms IS NOT NULL AS timed
FROM (
    FROM matrix
    UNION ALL BY NAME  -- columns that an older database lacks are NULL
    SELECT CAST(NULL AS VARCHAR) AS precision, CAST(NULL AS DOUBLE) AS tpot_ms, CAST(NULL AS DOUBLE) AS own_speed_up, CAST(NULL AS VARCHAR) AS cpu_dtype WHERE false
) m
LEFT JOIN machines h USING (cell_id)
LEFT JOIN described d ON d.run_id = m.run_id AND d.model = m.model AND d.size = m.size AND m.size = 'full'
WHERE m.level IS NOT NULL
ORDER BY m.started_at DESC, m.run_id DESC, m.position, m.cell_key;
