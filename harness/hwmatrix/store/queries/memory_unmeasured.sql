-- Every planned cell without a measured peak, and how it ended.
SELECT model, size, target, dtype, batch, sequence_length, status, error_type, run_id
FROM results
WHERE status NOT IN ('pass', 'mismatch') OR coalesce(peak_mb, device_peak_mb) IS NULL
ORDER BY run_id, position;
