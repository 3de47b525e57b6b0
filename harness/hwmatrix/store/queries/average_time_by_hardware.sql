-- Average inference time by hardware, size, precision and execution, over the executions that succeeded. Seconds. Emulated executions
-- have no time. Targets may support different models, so their averages may be over different models.
SELECT
    hardware, size, dtype, execution,
    count(*) AS executions,
    avg(inference_time) AS average_inference_time,
    min(inference_time) AS shortest_inference_time,
    max(inference_time) AS longest_inference_time
FROM hardware_results
WHERE success AND inference_time IS NOT NULL
GROUP BY hardware, size, dtype, execution
ORDER BY size, dtype, execution, average_inference_time, hardware;
