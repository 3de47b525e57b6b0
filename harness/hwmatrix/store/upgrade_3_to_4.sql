-- A merged database of schema 3 becomes one of schema 4: timed cells say how fast the machine itself was. Of those that are there, nobody knows.
ALTER TABLE cells ADD COLUMN yardstick VARCHAR;
ALTER TABLE cells ADD COLUMN yardstick_ms DOUBLE;
UPDATE meta SET value = '4' WHERE key = 'schema_version';
