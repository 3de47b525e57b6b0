-- The reported matrix, computed once: every other query of a report reads this table. column_dtype is the cell's precision if its target ran
-- in more than one (analyses never mix them), else NULL.
CREATE OR REPLACE TEMP TABLE report_cells AS
SELECT
    * REPLACE (CAST(adaptation AS VARCHAR) AS adaptation, coalesce(cpu_dtype, dtype) AS cpu_dtype),
    CASE WHEN count(DISTINCT dtype) OVER (PARTITION BY target, column_isolation) > 1 THEN dtype END AS column_dtype
FROM (
    SELECT * FROM report_source
    UNION ALL BY NAME  -- columns that an older database lacks are NULL
    SELECT * FROM unmeasured
);
