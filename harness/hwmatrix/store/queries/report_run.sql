-- The run to report: the one asked for, else the latest.
SELECT run_id, created_at, command, hwmatrix_version, matrix_sha256, commit_id, isolation
FROM runs
WHERE $run_id IS NULL OR run_id = $run_id
ORDER BY created_at DESC, run_id DESC
LIMIT 1;
