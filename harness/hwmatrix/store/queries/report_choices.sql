-- For each family the hardware that was tried with the same models, most of them: how many passed, and how much faster they ran than on cpu in
-- float32, on the machine where most were compared (for the order, models that are not told apart count as equal). The others, which were tried with fewer or other models, are not alike: they are not ranked.
-- Only full-size models show how fast a target is, so a family that has any is judged by these alone. One forward pass each. Emulated
-- and software targets are left out.
WITH tried AS (
    SELECT *, speed_differs AND NOT speed_contended AND size = 'full' AS counts, max(size = 'full' AND p50_ms IS NOT NULL OR NOT any_tiny) OVER (PARTITION BY family) AS in_full
    FROM (
        SELECT *, max(size = 'tiny') OVER (PARTITION BY family) AS any_tiny
        FROM report_cells WHERE level IS NOT NULL AND execution = 'hardware' AND workload = 'forward'
    )
),
judged AS (
    SELECT * FROM tried WHERE size = CASE WHEN in_full THEN 'full' ELSE 'tiny' END
),
speeds AS (
    SELECT family, target, dtype, column_isolation, exp(avg(ln(speed_up))) AS speed_up, count(DISTINCT model) AS compared
    FROM judged WHERE counts AND status = 'pass'
    GROUP BY family, target, dtype, column_isolation, host
    QUALIFY row_number() OVER (PARTITION BY family, target, dtype, column_isolation ORDER BY count(DISTINCT model) DESC, host) = 1
),
columns AS (
    SELECT
        family, size, target, dtype, column_isolation, any_value(column_dtype) AS column_dtype, list_sort(list(DISTINCT model)) AS models,
        count(DISTINCT model) AS tried, count(DISTINCT model) FILTER (WHERE status = 'pass') AS passed, min(position) AS position
    FROM judged GROUP BY ALL
),
placed AS (
    SELECT *, models = arg_max(models, (tried, -position)) OVER (PARTITION BY family) AS alike, min(position) OVER (PARTITION BY family) AS first FROM columns
)
SELECT
    family, size, target, column_dtype AS dtype, column_isolation AS isolation, tried, passed, alike, speed_up, coalesce(compared, 0) AS compared
FROM placed LEFT JOIN speeds USING (family, target, dtype, column_isolation)
ORDER BY first, NOT alike, passed DESC, coalesce(compared * ln(speed_up), 0) DESC, position;
