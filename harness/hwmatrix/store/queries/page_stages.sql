-- How far the cells of a run got: the milliseconds in each stage that was entered.
SELECT s.cell_id, s.stage, s.wall_ms
FROM stages s JOIN cells c USING (cell_id)
WHERE c.run_id IN (SELECT run_id FROM report_runs) AND c.role = 'model'
ORDER BY s.cell_id, s.stage;
