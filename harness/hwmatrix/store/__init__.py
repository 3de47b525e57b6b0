"""Storage: the schema, one shard per image, the merge, and the queries."""
