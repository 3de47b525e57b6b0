-- The 20 models that need most memory, each with the hardware on which it needed most. MiB.
SELECT model_id, model_type, arg_max(hardware, memory_usage) AS hardware, max(memory_usage) AS memory_usage
FROM hardware_results
WHERE memory_usage IS NOT NULL
GROUP BY model_id, model_type
ORDER BY memory_usage DESC, model_id
LIMIT 20;
