-- The packages that the cells of a database were executed with (those that matter for each target), and when.
SELECT CAST(s.versions AS VARCHAR) AS versions, min(c.started_at) AS first, max(c.started_at) AS last
FROM cells c JOIN shards s USING (shard_id)
WHERE c.role = 'model'
GROUP BY ALL
ORDER BY versions;
