-- Every package that was installed where a run's shards were written.
SELECT shard_id, CAST(packages AS VARCHAR) AS packages FROM shards WHERE run_id IN (SELECT run_id FROM report_runs) ORDER BY shard_id;
