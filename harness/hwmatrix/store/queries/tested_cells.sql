-- How each cell of one run ended, for deciding what to try next.
SELECT target, backend, dtype, batch, sequence_length, threads, status, stage, execution, level, on_target, placement_detail, relative_error,
       p50_ms, ci_low_ms, ci_high_ms, samples, contended, wall_ms, peak_mb, device_peak_mb, error_type, message, command
FROM matrix
WHERE run_id = $run_id
ORDER BY position;
