-- Upgrades a merged database from schema 5 to 6. In schema 5, memory was read after the comparison, and never for browsers. Failed cells
-- were not retried with changed settings.
ALTER TABLE cells ADD COLUMN adapted_from VARCHAR;
ALTER TABLE cells ADD COLUMN adaptation JSON;
