-- The distribution of each cell's samples (the view spreads), without emulators, whose time is not a speed.
SELECT s.cell_id, s.quantiles_ms
FROM spreads s JOIN cells c USING (cell_id)
WHERE c.run_id IN (SELECT run_id FROM report_runs) AND c.role = 'model' AND c.execution <> 'emulated'
ORDER BY s.cell_id;
