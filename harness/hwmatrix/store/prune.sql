-- Deletes everything that the view verdicts (views.sql) does not need. For each cell, it keeps the latest verdict, the execution that
-- reports show, and the latest timing; for each of these also the two float32 cells that its speed is compared with, of cpu and of
-- its own target (same run, machine and settings), and later retries of a failed cell with changed settings. A published database keeps no cells that were never run.
CREATE OR REPLACE TEMP TABLE kept AS
WITH counted AS (
    SELECT * FROM verdicts WHERE (nth = 1 OR shown OR best_timed) AND (status <> 'not_run' OR NOT getvariable('publish'))
)
SELECT run_id, cell_key, cell_id FROM counted
UNION
SELECT m.run_id, m.cell_key, m.cell_id
FROM matrix m JOIN counted c USING (run_id, host, isolation, model, size, batch, sequence_length, threads, new_tokens)
WHERE m.dtype = 'float32' AND (m.backend = 'cpu' OR m.target = c.target) AND m.execution = 'hardware' AND m.status = 'pass' AND m.p50_ms IS NOT NULL
  AND c.status = 'pass' AND c.p50_ms IS NOT NULL;

CREATE OR REPLACE TEMP TABLE kept_cells AS
SELECT cell_id FROM kept WHERE cell_id IS NOT NULL
UNION
SELECT a.cell_id
FROM cells a JOIN cells c ON c.run_id = a.run_id AND c.cell_key = a.adapted_from AND a.started_at >= c.started_at
WHERE a.role = 'adapted' AND c.cell_id IN (SELECT cell_id FROM kept)
UNION
SELECT c.cell_id
FROM cells c JOIN shards s USING (shard_id)
WHERE c.role LIKE 'canary%' AND (s.run_id, s.target) IN (SELECT p.run_id, p.target FROM planned p JOIN kept k USING (run_id, cell_key));

CREATE OR REPLACE TEMP TABLE kept_tests AS
SELECT shard_id, test FROM operator_results;

CREATE OR REPLACE TEMP TABLE kept_shards AS
SELECT s.shard_id
FROM shards s
WHERE (s.run_id, s.target) IN (SELECT p.run_id, p.target FROM planned p JOIN kept k USING (run_id, cell_key))
   OR s.shard_id IN (SELECT shard_id FROM kept_tests);

DELETE FROM cells WHERE cell_id NOT IN (SELECT cell_id FROM kept_cells);
DELETE FROM stages WHERE cell_id NOT IN (SELECT cell_id FROM kept_cells);
DELETE FROM outputs WHERE cell_id NOT IN (SELECT cell_id FROM kept_cells);
DELETE FROM timings WHERE cell_id NOT IN (SELECT cell_id FROM kept_cells);
DELETE FROM samples WHERE cell_id NOT IN (SELECT cell_id FROM kept_cells);
DELETE FROM operators WHERE (shard_id, test) NOT IN (SELECT shard_id, test FROM kept_tests);
DELETE FROM shards WHERE shard_id NOT IN (SELECT shard_id FROM kept_shards);
DELETE FROM detections WHERE shard_id NOT IN (SELECT shard_id FROM kept_shards);
DELETE FROM classifications WHERE shard_id NOT IN (SELECT shard_id FROM kept_shards);
DELETE FROM runs WHERE run_id NOT IN (SELECT run_id FROM shards UNION SELECT run_id FROM kept);
DELETE FROM planned WHERE run_id NOT IN (SELECT run_id FROM runs);
DELETE FROM releases WHERE run_id NOT IN (SELECT run_id FROM runs);
DELETE FROM rejected WHERE run_id IS NULL OR run_id NOT IN (SELECT run_id FROM runs);
