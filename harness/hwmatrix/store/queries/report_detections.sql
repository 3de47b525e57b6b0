-- The hardware that the run's shards detected on their machines.
SELECT d.shard_id, d.hardware_type, d.available, d.name, d.features, d.reason
FROM detections d JOIN shards s USING (shard_id)
WHERE s.run_id IN (SELECT run_id FROM report_runs)
ORDER BY s.target, s.started_at, d.shard_id, d.available DESC, d.hardware_type, d.name;
