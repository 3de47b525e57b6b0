-- For each model type the hardware with the shortest average inference time, over the executions that succeeded. Seconds.
SELECT model_type, hardware, avg(inference_time) AS average_inference_time, count(*) AS executions
FROM hardware_results
WHERE success AND inference_time IS NOT NULL
GROUP BY model_type, hardware
QUALIFY row_number() OVER (PARTITION BY model_type ORDER BY average_inference_time, hardware) = 1
ORDER BY model_type;
