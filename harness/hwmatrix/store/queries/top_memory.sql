-- The 20 models that need the most memory in each size and execution, with the hardware and precision where they needed it. MiB.
-- weights says what was executed: random weights have the model's shape, not the weights of the hub.
SELECT
    model_id, model_type, size, weights, execution,
    arg_max(hardware, (memory_usage, cell_id)) AS hardware,
    arg_max(dtype, (memory_usage, cell_id)) AS dtype,
    max(memory_usage) AS memory_usage
FROM hardware_results
WHERE memory_usage IS NOT NULL
GROUP BY model_id, model_type, size, weights, execution
QUALIFY row_number() OVER (PARTITION BY size, execution ORDER BY max(memory_usage) DESC, model_id) <= 20
ORDER BY size, execution, memory_usage DESC, model_id;
