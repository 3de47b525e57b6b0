-- The reported matrix, computed once: every other query of a report reads this table. column_dtype is the cell's precision if its target ran
-- in more than one (analyses never mix them), else NULL. workload: see workload_of in views.sql. processor names the machine (host).
CREATE OR REPLACE TEMP TABLE report_cells AS
SELECT
    r.* REPLACE (CAST(adaptation AS VARCHAR) AS adaptation),
    processor,
    CASE WHEN count(DISTINCT dtype) OVER (PARTITION BY target, column_isolation) > 1 THEN dtype END AS column_dtype,
    workload_of(model, size, target, column_isolation, dtype, batch, sequence_length, threads, new_tokens) AS workload
FROM report_source r LEFT JOIN machines USING (cell_id);
