-- Time of a workload (one forward pass, or one generation) by hardware, size, precision, execution and machine, over the models that passed.
-- Seconds. Emulated executions have no time. The averages of two rows are over different models unless models says the same of both.
SELECT
    target AS hardware, size, dtype, execution,
    count(DISTINCT model) AS models,
    avg(p50_ms) / 1000 AS average_inference_time,
    min(p50_ms) / 1000 AS shortest_inference_time,
    max(p50_ms) / 1000 AS longest_inference_time,
    workload, threads, column_isolation AS isolation, host AS machine
FROM workloads
WHERE status = 'pass' AND p50_ms IS NOT NULL AND execution <> 'emulated'
GROUP BY target, size, dtype, execution, workload, threads, column_isolation, host
ORDER BY workload, size, dtype, execution, average_inference_time, hardware;
