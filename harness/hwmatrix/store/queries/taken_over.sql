-- In a shard: its cells, for the progress of a run that takes it over from a process that died.
SELECT cell_key AS "key", role, status, stage, message AS error
FROM cells JOIN shards USING (shard_id)
WHERE role = 'model' AND canary_ok
ORDER BY cells.started_at;
