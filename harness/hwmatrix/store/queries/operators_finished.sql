-- In a trustworthy shard of operator tests: the tests with a verdict.
SELECT o.target, o.test FROM operators o JOIN shards s USING (shard_id) WHERE s.canary_ok ORDER BY o.target, o.test;
