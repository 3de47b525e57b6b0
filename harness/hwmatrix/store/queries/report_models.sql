-- What the plan of a run says of where the weights of its models come from: recipe, factory, hub, or a folder.
SELECT model ->> 'name' AS model, model ->> 'size' AS size, coalesce(model ->> 'weights', 'recipe') AS weights
FROM (SELECT unnest(from_json(plan -> 'models', '["JSON"]')) AS model FROM runs WHERE run_id = $run_id)
WHERE coalesce(model ->> 'role', 'model') = 'model';
