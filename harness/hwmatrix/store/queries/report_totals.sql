-- How many models were tried and passed on each target in each precision, by workload (one forward pass, or one generation): of each family,
-- and of all (family is NULL there). A model passes if each of its sizes does, unchanged; changed counts
-- those that do only with a changed model. text_path: those that ran only the text path of a model that
-- takes more. Cells that were not executed are not counted.
WITH models AS (
    SELECT
        target, column_isolation AS isolation, dtype, workload, family, model,
        bool_and(status = 'pass' AND level <> 'Low') AS passed, bool_and(status = 'pass') AND NOT passed AS changed, coalesce(bool_or(text_path), false) AS text_path, min(position) AS position
    FROM report_cells
    WHERE workload IS NOT NULL AND level IS NOT NULL
    GROUP BY ALL
)
SELECT
    target, isolation, dtype, workload, family,
    count(*) AS tried, count(*) FILTER (WHERE passed) AS passed,
    count(*) FILTER (WHERE changed) AS changed, count(*) FILTER (WHERE text_path) AS text_path
FROM models
GROUP BY GROUPING SETS ((target, isolation, dtype, workload, family), (target, isolation, dtype, workload))
ORDER BY min(position), family NULLS FIRST, target, isolation, dtype, workload;
