-- The shards that the merge rejected: those of this run, and those whose run could not be read.
SELECT file, reason, rejected_at
FROM rejected
WHERE run_id IN (SELECT run_id FROM report_runs) OR run_id IS NULL
ORDER BY file, reason;
