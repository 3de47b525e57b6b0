-- Cells of these runs that no view shows: neither this execution nor a later one of the same cell, or any other one if this one says nothing
-- about the model. Cells that were withdrawn from the run's plan are ignored: their keys are read first, since a plan may have many megabytes.
WITH asked AS MATERIALIZED (
    SELECT run_id, CAST(plan -> 'withdrawn' AS VARCHAR[]) AS withdrawn
    FROM runs
    WHERE list_contains(CAST($run_ids AS VARCHAR[]), run_id)
),
executed AS (
    SELECT
        c.cell_id, c.shard_id, c.run_id, c.cell_key, c.started_at,
        s.canary_ok IS NOT TRUE OR c.status IN ('unavailable', 'factory_error', 'infra_error') AS no_verdict
    FROM cells c
    JOIN asked a USING (run_id)
    JOIN shards s USING (shard_id)
    WHERE c.role = 'model' AND NOT coalesce(list_contains(a.withdrawn, c.cell_key), false)
),
shown AS (
    SELECT run_id, cell_key, cell_id, started_at FROM matrix WHERE cell_id IS NOT NULL
)
SELECT e.shard_id, e.cell_key
FROM executed e
LEFT JOIN shown m ON m.run_id = e.run_id AND m.cell_key = e.cell_key AND (m.started_at >= e.started_at OR e.no_verdict)
GROUP BY e.cell_id, e.shard_id, e.cell_key
HAVING count(m.cell_id) <> 1
ORDER BY e.shard_id, e.cell_key;
