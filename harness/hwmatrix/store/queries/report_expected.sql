-- The results of each family of models on each hardware, for comparison with the expectations. A model counts once, by its best
-- cell there: executed before not executed, full size before tiny, then the best level. Rows are grouped by execution too, so
-- that a pass in software is never counted as one on hardware.
WITH best AS (
    SELECT *
    FROM report_cells
    WHERE workload = 'forward'
    QUALIFY row_number() OVER (
        PARTITION BY family, backend, execution, model
        ORDER BY level IS NULL, size <> 'full', list_position(['High', 'Medium', 'Low', 'none'], level), p50_ms NULLS LAST, position, cell_key
    ) = 1
),
cells AS (
    SELECT
        family, backend, execution,
        count(*) FILTER (WHERE level IS NOT NULL) AS cells,
        count(*) FILTER (WHERE status = 'pass' AND level <> 'Low') AS passed_cells
    FROM report_cells
    GROUP BY family, backend, execution
)
SELECT
    family, backend AS hardware, execution,
    count(*) FILTER (WHERE level IS NOT NULL) AS models,
    count(*) FILTER (WHERE status = 'pass' AND level <> 'Low') AS passing,
    count(*) FILTER (WHERE status = 'pass' AND level <> 'Low') / nullif(count(*) FILTER (WHERE level IS NOT NULL), 0) AS pass_share,
    any_value(c.cells) AS cells,
    any_value(c.passed_cells) AS passed_cells,
    count(*) FILTER (WHERE level = 'High') AS high,
    count(*) FILTER (WHERE level = 'Medium') AS medium,
    count(*) FILTER (WHERE level = 'Low') AS low,
    count(*) FILTER (WHERE level = 'none') AS "none",
    arg_min(message, position) FILTER (WHERE level IS NULL) AS reason,
    list(
        struct_pack(
            model := model, size := size, target := target, dtype := dtype, status := status, level := level, isolation := column_isolation,
            cell_key := cell_key
        )
        ORDER BY position, cell_key
    ) AS evidence
FROM best JOIN cells c USING (family, backend, execution)
GROUP BY family, backend, execution
ORDER BY min(position), backend, execution;
