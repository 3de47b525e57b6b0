-- The installed packages and the image of each target of a run, from its newest shard.
SELECT target, isolation, image, image_digest, host, interpreter, CAST(packages AS VARCHAR) AS packages
FROM shards
WHERE run_id IN (SELECT run_id FROM report_runs)
QUALIFY row_number() OVER (PARTITION BY target, isolation ORDER BY started_at DESC, shard_id) = 1
ORDER BY target, isolation;
