-- Targets whose latest shard of operator tests is untrustworthy, or says that the target was not available.
SELECT target, isolation, canary_ok, canary_detail
FROM (
    SELECT s.*, row_number() OVER (PARTITION BY s.target, s.isolation ORDER BY s.started_at DESC, s.shard_id) AS newest
    FROM shards s
    WHERE NOT EXISTS (SELECT 1 FROM planned p WHERE p.run_id = s.run_id)
)
WHERE newest = 1 AND canary_ok IS NOT TRUE
ORDER BY target, isolation;
