-- Cells of each family on each target, and of each target over all families (family is NULL there): how many were tried, how many passed,
-- and how many ran only the text path of a model that accepts more. Cells that were not executed are not counted.
SELECT
    family, target, column_isolation AS isolation,
    count(*) FILTER (WHERE level IS NOT NULL) AS tried,
    count(*) FILTER (WHERE status = 'pass') AS passed,
    count(*) FILTER (WHERE level IS NOT NULL AND text_path) AS text_path
FROM report_cells
GROUP BY GROUPING SETS ((family, target, column_isolation), (target, column_isolation))
ORDER BY min(position), family NULLS FIRST, target, isolation;
