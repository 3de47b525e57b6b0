-- A merged database of schema 2 becomes one of schema 3: cells say what they were given. Of those that are there, nobody knows.
ALTER TABLE cells ADD COLUMN inputs VARCHAR[];
ALTER TABLE cells ADD COLUMN text_path BOOLEAN;
UPDATE meta SET value = '3' WHERE key = 'schema_version';
