-- The shards that the merge refused: those of this run, and those that could not be read well enough to tell.
SELECT file, reason, rejected_at
FROM rejected
WHERE run_id IN (SELECT run_id FROM report_runs) OR run_id IS NULL
ORDER BY file, reason;
