-- Cells of these runs that no view shows: neither this execution nor a later one of the same cell, or any other one if this is a failure of
-- ours. Cells that were withdrawn from the run's plan are ignored.
SELECT c.shard_id, c.cell_key
FROM cells c
JOIN runs u USING (run_id)
LEFT JOIN matrix m ON m.run_id = c.run_id AND m.cell_key = c.cell_key AND (m.started_at >= c.started_at OR c.status = 'infra_error')
WHERE c.role = 'model'
  AND list_contains(CAST($run_ids AS VARCHAR[]), c.run_id)
  AND NOT coalesce(list_contains(CAST(u.plan -> 'withdrawn' AS VARCHAR[]), c.cell_key), false)
GROUP BY c.cell_id, c.shard_id, c.cell_key
HAVING count(m.cell_id) <> 1
ORDER BY c.shard_id, c.cell_key;
