-- In a shard: what each cell of a model was executed with.
SELECT c.cell_key, s.image_digest, c.bundle, c.started_at
FROM cells c JOIN shards s USING (shard_id)
WHERE c.role = 'model';
