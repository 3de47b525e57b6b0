-- The hardware that the images of a run detected, by target in the order of detection.
SELECT s.target, s.isolation, s.image, s.image_digest, d.hardware_type, d.available, d.name, CAST(d.features AS VARCHAR) AS features,
       d.reason, d.detected_at
FROM detections d JOIN shards s USING (shard_id)
WHERE s.run_id = $run_id
ORDER BY s.started_at, s.shard_id, d.available DESC, d.hardware_type;
