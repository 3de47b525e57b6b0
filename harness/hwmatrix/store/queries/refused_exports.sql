-- In a shard: the models' cells that failed during preparation, except those whose target lacks the precision.
SELECT cell_key
FROM cells
WHERE role = 'model' AND stage = 'prepare' AND status IN ('unsupported', 'error') AND error_type IS DISTINCT FROM 'unsupported_dtype';
