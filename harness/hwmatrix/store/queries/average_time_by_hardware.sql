-- Average inference time by hardware, size, precision and execution, over the executions that succeeded. Seconds. What was emulated has
-- no time; averages are over different models where targets support different ones.
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
