-- The five slowest and the five fastest cells of each target and size, on hardware. If there are fewer than ten cells,
-- no cell is listed twice.
WITH ranked AS (
    SELECT
        target, column_isolation AS isolation, column_dtype AS dtype, size, model, p50_ms, position,
        row_number() OVER (PARTITION BY target, column_isolation, column_dtype, size ORDER BY p50_ms, position) AS nth,
        count(*) OVER (PARTITION BY target, column_isolation, column_dtype, size) AS cells
    FROM report_cells
    WHERE status = 'pass' AND p50_ms IS NOT NULL AND execution = 'hardware'
)
SELECT
    target, isolation, dtype, size,
    list(struct_pack(model := model, p50_ms := p50_ms) ORDER BY p50_ms, position) FILTER (WHERE nth <= least(5, cells // 2)) AS fastest,
    list(struct_pack(model := model, p50_ms := p50_ms) ORDER BY p50_ms DESC, position)
        FILTER (WHERE nth > cells - least(5, cells - cells // 2)) AS slowest
FROM ranked
GROUP BY target, isolation, dtype, size
ORDER BY min(position), size;
