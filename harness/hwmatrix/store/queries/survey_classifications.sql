-- The models of a run as classified by the packages of each image.
SELECT s.target, s.isolation, s.image, s.image_digest, c.* EXCLUDE (shard_id)
FROM classifications c JOIN shards s USING (shard_id)
WHERE s.run_id = $run_id
ORDER BY s.started_at, s.shard_id, c.model;
