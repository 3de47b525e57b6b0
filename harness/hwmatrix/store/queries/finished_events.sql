-- In a shard: its cells with a trustworthy verdict, as the events with which their runner reported them.
SELECT
    'cell' AS event, cell_key AS "key", target, role, status, stage, message AS error, cells.started_at,
    (SELECT quantile_cont(wall_ns, 0.5) / 1e6 FROM samples WHERE samples.cell_id = cells.cell_id) AS p50_ms
FROM cells JOIN shards USING (shard_id, target)
WHERE role IN ('model', 'adapted') AND (canary_ok OR status IN ('unavailable', 'fallback'))
ORDER BY cells.started_at;
