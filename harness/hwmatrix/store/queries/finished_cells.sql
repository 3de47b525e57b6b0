-- In a shard: the cells with a trustworthy verdict.
SELECT cell_key
FROM cells JOIN shards USING (shard_id)
WHERE role IN ('model', 'adapted') AND (canary_ok OR status IN ('unavailable', 'fallback'));
