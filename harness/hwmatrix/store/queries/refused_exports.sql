-- In a shard: the cells of models that came as far as their preparation and not beyond it, other than for want of a precision.
SELECT cell_key
FROM cells
WHERE role = 'model' AND stage = 'prepare' AND status IN ('unsupported', 'error') AND error_type IS DISTINCT FROM 'unsupported_dtype';
