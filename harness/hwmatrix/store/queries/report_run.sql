-- The run to report: the requested one, else the latest that executed models (runs of operator tests have none).
SELECT run_id, created_at, command, hwmatrix_version, matrix_sha256, commit_id, isolation
FROM runs
WHERE run_id = $run_id OR $run_id IS NULL AND EXISTS (SELECT 1 FROM planned p WHERE p.run_id = runs.run_id)
ORDER BY created_at DESC, run_id DESC
LIMIT 1;
