-- For each model type, size and precision the hardware with the shortest average inference time, over the executions that succeeded.
-- Seconds. Only execution on the hardware itself is ranked, not emulation or software.
SELECT model_type, size, dtype, execution, hardware, avg(inference_time) AS average_inference_time, count(*) AS executions
FROM hardware_results
WHERE success AND inference_time IS NOT NULL AND execution = 'hardware'
GROUP BY model_type, size, dtype, execution, hardware
QUALIFY row_number() OVER (PARTITION BY model_type, size, dtype ORDER BY average_inference_time, hardware) = 1
ORDER BY model_type, size, dtype;
