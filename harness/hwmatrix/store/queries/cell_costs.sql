-- How long each cell took the last time, in seconds, by its key.
SELECT cell_key, arg_max(wall_ms, started_at) / 1000
FROM cells
WHERE role = 'model' AND status NOT IN ('unavailable', 'not_run', 'infra_error')
GROUP BY cell_key;
