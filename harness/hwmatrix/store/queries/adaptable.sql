-- In a shard: how each model's cell and each retry with changed settings ended, if the verdict is trustworthy.
SELECT c.cell_key, c.status, c.error_type, c.message, c.preparation, c.adapted_from, CAST(c.adaptation AS VARCHAR) AS adaptation, c.started_at
FROM cells c JOIN shards s USING (shard_id)
WHERE c.role IN ('model', 'adapted') AND (s.canary_ok OR c.status = 'factory_error')
ORDER BY c.started_at, c.cell_id;
