-- A merged database of schema 4 becomes one of schema 5: cells whose outputs differ say where that begins. Of those that are there, nobody looked.
ALTER TABLE cells ADD COLUMN origin VARCHAR;
ALTER TABLE cells ADD COLUMN diverges_at VARCHAR;
ALTER TABLE cells ADD COLUMN diverges_operator VARCHAR;
ALTER TABLE cells ADD COLUMN diverges_error DOUBLE;
ALTER TABLE cells ADD COLUMN diverges_given DOUBLE;
ALTER TABLE cells ADD COLUMN diverges_against VARCHAR;
ALTER TABLE cells ADD COLUMN diverges_detail VARCHAR;
UPDATE meta SET value = '5' WHERE key = 'schema_version';
