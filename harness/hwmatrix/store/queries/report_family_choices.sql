-- The results of each hardware target for each family of models: how many of its models were tried and passed, and the geometric mean of
-- the speed-up over cpu. Only full-size models show how fast a target is, so a family that has any is judged by these alone; `size` says
-- which models a row is about. Emulated and software targets are left out. Order within a family: most models passing, then fastest.
WITH tried AS (
    SELECT
        *, CASE WHEN status = 'pass' AND size = 'full' AND backend <> 'cpu' THEN speed_up END AS gain,
        CASE WHEN status = 'pass' AND size = 'full' AND backend <> 'cpu' AND speed_differs THEN speed_up END AS clear_gain,
        max(size = 'full' AND p50_ms IS NOT NULL OR NOT any_tiny) OVER (PARTITION BY family) AS in_full,
        min(position) OVER (PARTITION BY family) AS family_position
    FROM (SELECT *, max(size = 'tiny') OVER (PARTITION BY family) AS any_tiny FROM report_cells WHERE level IS NOT NULL AND execution = 'hardware')
)
SELECT
    family, family_position AS position, size, target, dtype, column_isolation AS isolation, any_value(backend) = 'cpu' AS is_cpu,
    count(*) AS tried,
    count(*) FILTER (WHERE status = 'pass') AS passed,
    exp(avg(ln(gain))) AS speed_up,
    count(gain) AS compared,
    count(*) FILTER (WHERE clear_gain > 1) AS faster,
    count(*) FILTER (WHERE clear_gain < 1) AS slower,
    count(DISTINCT dtype) OVER (PARTITION BY family, size, target, column_isolation) > 1 AS several_dtypes
FROM tried
WHERE size = CASE WHEN in_full THEN 'full' ELSE 'tiny' END
GROUP BY family, family_position, size, target, dtype, column_isolation
ORDER BY
    family_position, count(*) FILTER (WHERE status = 'pass') / count(*) DESC, count(*) FILTER (WHERE status = 'pass') DESC,
    coalesce(exp(avg(ln(gain))), 1) DESC, min(position);
