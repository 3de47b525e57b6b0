-- In a shard: the cells that have a verdict which can be believed and stands. A failure of ours, and what ran out of time before the
-- cell began, is tried again: its cause, such as the load of the machine, could be gone.
SELECT cell_key
FROM cells JOIN shards USING (shard_id)
WHERE role IN ('model', 'adapted') AND (canary_ok OR status IN ('unavailable', 'fallback'))
    AND status <> 'infra_error' AND coalesce(error_type, '') NOT IN ('bundle_unfinished', 'export_timeout');
