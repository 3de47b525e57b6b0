-- The dates of the run's evidence: its oldest cell and its newest. No row if nothing was executed.
SELECT
    count(*) AS executed,
    count(DISTINCT model) AS models,
    count(*) FILTER (WHERE status = 'pass' AND execution <> 'emulated' AND p50_ms IS NOT NULL) AS timed,
    min(started_at) AS oldest_at,
    max(started_at) AS newest_at,
    arg_min(model, (started_at, cell_key)) AS oldest_model,
    arg_min(target, (started_at, cell_key)) AS oldest_target,
    arg_min(column_isolation, (started_at, cell_key)) AS oldest_isolation
FROM report_cells
WHERE started_at IS NOT NULL AND level IS NOT NULL
HAVING count(*) > 0;
