-- Every planned cell of a run, with the columns that a comparison of two runs needs: its verdict, p25_ms (the lower quartile), and noise_ms
-- (the view noises). The yardstick, a fixed computation on the CPU, counts only if the CPU was busy during the whole timing.
SELECT
    c.cell_key, c.model, c.size, c.target, c.backend, c.family, c.architecture, c.dtype, c."precision", c.batch, c.sequence_length, c.threads, c.new_tokens,
    c.execution, c.column_isolation AS isolation, c.host, c.matrix_line,
    c.status, c.stage, c.level, c.error_type, c.message, c.on_target, c.placement_detail, c.method, c.bundle,
    c.p50_ms, n.p25_ms, c.samples, c.contended, n.noise_ms,
    CASE WHEN c.cpu_p50_ms >= 0.9 * c.p50_ms THEN c.yardstick END AS yardstick,
    CASE WHEN c.cpu_p50_ms >= 0.9 * c.p50_ms THEN c.yardstick_ms END AS yardstick_ms,
    c.ttft_ms, c.ttft_low_ms, c.ttft_high_ms, c.tpot_ms, c.tpot_low_ms, c.tpot_high_ms,
    c.delta_mb, c.device_peak_mb, c.image_digest, c.command, c.relative_error AS loss
FROM report_source c
LEFT JOIN noises n USING (cell_id)
ORDER BY c.position, c.cell_key;
