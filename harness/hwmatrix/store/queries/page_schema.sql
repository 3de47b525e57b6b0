-- The version of the schema that a database was written in.
SELECT value AS version FROM meta WHERE key = 'schema_version';
