-- In a shard: the image and the bundle that each model's cell was executed with.
SELECT c.cell_key, s.image_digest, c.bundle, c.started_at
FROM cells c JOIN shards s USING (shard_id)
WHERE c.role = 'model';
