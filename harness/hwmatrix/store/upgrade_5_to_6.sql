-- A merged database of schema 5 becomes one of schema 6. Memory was read after the comparison then, and of browsers not at all.
ALTER TABLE cells ADD COLUMN memory_detail VARCHAR;
UPDATE meta SET value = '6' WHERE key = 'schema_version';
