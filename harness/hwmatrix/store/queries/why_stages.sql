-- How far some cells of a run got: the time in each stage that was entered.
SELECT s.cell_id, s.stage, s.wall_ms
FROM stages s JOIN report_cells c USING (cell_id)
WHERE c.model = $model AND c.target = $target
ORDER BY s.cell_id;
