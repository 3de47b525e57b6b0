-- In a shard of operator tests: its target, if it can be believed and came to its end.
SELECT target FROM shards WHERE canary_ok AND finished_at IS NOT NULL;
