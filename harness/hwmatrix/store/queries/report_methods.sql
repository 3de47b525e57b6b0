-- How models were prepared for each target (which exporter, and why not the first one), most used first.
SELECT target, column_isolation AS isolation, method, count(*) AS cells, list(model ORDER BY position) AS models
FROM report_cells
WHERE method IS NOT NULL
GROUP BY target, column_isolation, method
ORDER BY min(position), target, cells DESC, method;
