-- A merged database of schema 5 becomes one of schema 6. Memory was read after the comparison then, and of browsers not at all; and no cell
-- that failed was tried again, adapted. The view hardware_results says what was executed (views.sql).
ALTER TABLE cells ADD COLUMN adapted_from VARCHAR;
ALTER TABLE cells ADD COLUMN adaptation JSON;
