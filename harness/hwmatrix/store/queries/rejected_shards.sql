-- Every shard that a merge refused, of all runs.
SELECT file, reason, rejected_at
FROM rejected
ORDER BY file, reason;
