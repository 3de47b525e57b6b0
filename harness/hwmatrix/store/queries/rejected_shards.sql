-- Every shard that a merge refused, of whatever run.
SELECT file, reason, rejected_at
FROM rejected
ORDER BY file, reason;
