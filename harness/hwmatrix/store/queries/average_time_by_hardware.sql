-- Average inference time by hardware, over the executions that succeeded. Seconds.
SELECT
    hardware,
    count(*) AS executions,
    avg(inference_time) AS average_inference_time,
    min(inference_time) AS shortest_inference_time,
    max(inference_time) AS longest_inference_time
FROM hardware_results
WHERE success AND inference_time IS NOT NULL
GROUP BY hardware
ORDER BY average_inference_time, hardware;
