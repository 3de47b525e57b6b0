-- How the samples of each cell are spread: every twentieth of them, from the shortest to the longest. Milliseconds. An emulator's time
-- is no speed and not among them.
SELECT
    s.cell_id,
    quantile_cont(
        s.wall_ns / 1e6,
        [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0]
    ) AS quantiles_ms
FROM samples s JOIN cells c USING (cell_id)
WHERE c.run_id = $run_id AND c.role = 'model' AND c.execution <> 'emulated'
GROUP BY s.cell_id
ORDER BY s.cell_id;
