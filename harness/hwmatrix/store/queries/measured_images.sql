-- The images of the latest run, by target; no row for a target that ran outside containers.
SELECT target, image_digest
FROM shards
WHERE image IS NOT NULL
  AND image_digest IS NOT NULL
  AND run_id = (SELECT run_id FROM runs ORDER BY created_at DESC, run_id DESC LIMIT 1)
ORDER BY target, image_digest;
