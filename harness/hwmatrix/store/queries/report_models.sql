-- Where the weights of a run's models come from, according to its plan: recipe, factory, hub, or a folder.
SELECT model ->> 'name' AS model, model ->> 'size' AS size, if(model ->> 'trained' = 'true', 'trained', coalesce(model ->> 'weights', 'recipe')) AS weights
FROM (
    SELECT created_at, run_id, unnest(from_json(plan -> 'models', '["JSON"]')) AS model FROM runs WHERE run_id IN (SELECT run_id FROM report_runs)
)
WHERE coalesce(model ->> 'role', 'model') = 'model'
ORDER BY created_at, run_id;
