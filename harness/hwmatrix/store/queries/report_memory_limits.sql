-- The least memory in which one forward pass of each model ran, and where: the cell with the lowest peak among those that passed on hardware (only full-size
-- cells, if any was measured). The peak is of the device's memory if the target measures it, else of the process (`place`). `limit_mb` is
-- the smallest power of two above the peak. MiB.
WITH measured AS (
    SELECT
        *, CASE WHEN device_peak_mb IS NULL THEN 'process' ELSE 'device' END AS place,
        coalesce(device_peak_mb, peak_mb) AS limiting_mb,
        max(size = 'full') OVER () AS any_full
    FROM report_cells
    WHERE status = 'pass' AND execution = 'hardware' AND workload = 'forward' AND coalesce(device_peak_mb, peak_mb) IS NOT NULL
),
least AS (
    SELECT
        place, model, size,
        min(limiting_mb) AS peak_mb,
        arg_min(struct_pack(target := target, dtype := dtype), (limiting_mb, position)) AS cell,
        max(limiting_mb) AS most_mb,
        arg_max(struct_pack(target := target, dtype := dtype), (limiting_mb, -position)) AS most,
        min(position) AS position
    FROM measured
    WHERE size = CASE WHEN any_full THEN 'full' ELSE 'tiny' END
    GROUP BY place, model, size
)
SELECT
    place, size, CAST(pow(2, floor(log2(peak_mb)) + 1) AS BIGINT) AS limit_mb,
    count(*) AS models,
    list(struct_pack(model := model, peak_mb := peak_mb, target := cell.target, dtype := cell.dtype, most_mb := most_mb, most := most)
         ORDER BY peak_mb, position) AS least
FROM least
GROUP BY place, size, CAST(pow(2, floor(log2(peak_mb)) + 1) AS BIGINT)
ORDER BY place DESC, limit_mb;
