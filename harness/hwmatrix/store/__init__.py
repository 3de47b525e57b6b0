"""What is kept: the schema, one shard an image, the merge, and the queries."""
