-- Shrinks a database for publication in a repository: deletes what no verdict and no report needs. Samples are replaced by their
-- statistics, long tracebacks are cut to their beginning and end, and times are rounded to a microsecond.
INSERT INTO timings
SELECT
    l.cell_id, l.samples, l.p50_ms, l.p90_ms, l.p99_ms, l.mean_ms, l.min_ms, l.max_ms, l.ci_low_ms, l.ci_high_ms, l.cpu_p50_ms,
    n.p25_ms, n.noise_ms, s.quantiles_ms
FROM latency l JOIN noises n USING (cell_id) JOIN spreads s USING (cell_id) JOIN cells c USING (cell_id)
WHERE c.role = 'model' AND l.cell_id IN (SELECT cell_id FROM samples);
DELETE FROM samples;
DELETE FROM classifications;
UPDATE cells SET
    traceback = CASE
        WHEN length(traceback) > 6000 THEN concat(left(traceback, 1500), E'\n…\n', right(traceback, 4000)) ELSE traceback
    END,
    load_ms = round(load_ms, 3), prepare_ms = round(prepare_ms, 3), first_ms = round(first_ms, 3), wall_ms = round(wall_ms, 3),
    yardstick_ms = round(yardstick_ms, 3), baseline_mb = round(baseline_mb, 3), load_peak_mb = round(load_peak_mb, 3),
    peak_mb = round(peak_mb, 3), run_peak_mb = round(run_peak_mb, 3), delta_mb = round(delta_mb, 3), uss_mb = round(uss_mb, 3);
UPDATE stages SET wall_ms = round(wall_ms, 3);
