-- For each model, size, precision and workload (one forward pass, or one generation) the hardware on which it took the least time, among those
-- on one machine, and how many they were. Seconds. Only execution on the hardware itself is ranked, not emulation or software.
SELECT
    architecture AS model_type, size, dtype, execution, target AS hardware, p50_ms / 1000 AS inference_time,
    count(*) OVER alike AS compared, model, workload, column_isolation AS isolation, host AS machine
FROM workloads
WHERE status = 'pass' AND p50_ms IS NOT NULL AND execution = 'hardware'
WINDOW alike AS (PARTITION BY model, size, dtype, workload, batch, sequence_length, threads, new_tokens, column_isolation, host)
QUALIFY row_number() OVER (
    PARTITION BY model, size, dtype, workload, batch, sequence_length, threads, new_tokens, column_isolation, host ORDER BY p50_ms, target
) = 1
ORDER BY model_type, size, dtype, model, workload;
