-- Upgrades a merged database from schema 8 to 9. In schema 8, every cell was one forward pass.
ALTER TABLE planned ADD COLUMN IF NOT EXISTS new_tokens INTEGER DEFAULT 0;
ALTER TABLE cells ADD COLUMN IF NOT EXISTS new_tokens INTEGER DEFAULT 0;
