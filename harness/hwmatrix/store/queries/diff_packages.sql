-- What each target of a run had installed, and in which image: the newest shard of it tells.
SELECT target, isolation, image, image_digest, host, interpreter, CAST(packages AS VARCHAR) AS packages
FROM shards
WHERE run_id IN (SELECT run_id FROM report_runs)
QUALIFY row_number() OVER (PARTITION BY target, isolation ORDER BY started_at DESC, shard_id) = 1
ORDER BY target, isolation;
