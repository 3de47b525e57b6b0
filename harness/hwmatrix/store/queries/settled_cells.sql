-- In a shard: the cells with a trustworthy and final verdict. Failures of hwmatrix itself, and timeouts before the cell
-- began, are retried: their cause, such as the load of the machine, may be gone.
SELECT cell_key
FROM cells JOIN shards USING (shard_id)
WHERE role IN ('model', 'adapted') AND (canary_ok OR status IN ('unavailable', 'fallback'))
    AND status <> 'infra_error' AND coalesce(error_type, '') NOT IN ('bundle_unfinished', 'export_timeout', 'export_out_of_memory');
