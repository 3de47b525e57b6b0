-- In a shard of operator tests: its target, if the shard is trustworthy and complete.
SELECT target FROM shards WHERE canary_ok AND finished_at IS NOT NULL;
