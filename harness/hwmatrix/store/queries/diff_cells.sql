-- Every planned cell of a run, with what a comparison of two runs needs: its verdict, its quartile, and its own noise.
-- p25_ms is the lower quartile, which a disturbance reaches last. The noise is how far apart the lower quartiles of ten consecutive
-- parts of its samples lie: 1.4826 times their median absolute deviation (the standard deviation, if they were normal). What changes
-- slowly while a cell is timed shows there, and not in an interval of the whole. A cell with fewer than ten samples has as many parts as samples.
-- The yardstick, a fixed computation on the processor, counts where the processor computed all the time.
WITH chosen AS (
    SELECT * FROM matrix WHERE run_id = $run_id
    UNION ALL BY NAME  -- a database of schema 1 to 3 has no such columns: NULL
    SELECT CAST(NULL AS VARCHAR) AS yardstick, CAST(NULL AS DOUBLE) AS yardstick_ms WHERE false
),
parts AS (
    SELECT cell_id, part, quantile_cont(wall_ns, 0.25) / 1e6 AS p25_ms
    FROM (
        SELECT s.cell_id, s.wall_ns, ntile(10) OVER (PARTITION BY s.cell_id ORDER BY s.n) AS part
        FROM samples s WHERE s.cell_id IN (SELECT cell_id FROM chosen)
    )
    GROUP BY cell_id, part
),
noise AS (
    SELECT cell_id, 1.4826 * mad(p25_ms) AS noise_ms FROM parts GROUP BY cell_id
),
quarter AS (
    SELECT s.cell_id, quantile_cont(s.wall_ns, 0.25) / 1e6 AS p25_ms
    FROM samples s WHERE s.cell_id IN (SELECT cell_id FROM chosen)
    GROUP BY s.cell_id
)
SELECT
    c.cell_key, c.model, c.size, c.target, c.backend, c.family, c.architecture, c.dtype, c.batch, c.sequence_length, c.threads,
    c.execution, c.column_isolation AS isolation, c.host, c.matrix_line,
    c.status, c.stage, c.level, c.error_type, c.message, c.on_target, c.placement_detail, c.method, c.bundle,
    c.p50_ms, q.p25_ms, c.samples, c.contended, n.noise_ms,
    CASE WHEN c.cpu_p50_ms >= 0.9 * c.p50_ms THEN c.yardstick END AS yardstick,
    CASE WHEN c.cpu_p50_ms >= 0.9 * c.p50_ms THEN c.yardstick_ms END AS yardstick_ms,
    c.delta_mb, c.device_peak_mb, c.image_digest, c.command
FROM chosen c LEFT JOIN noise n USING (cell_id) LEFT JOIN quarter q USING (cell_id)
ORDER BY c.position, c.cell_key;
