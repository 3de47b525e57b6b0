-- The reported matrix, computed once: every other query of a report reads this table. column_dtype is the precision where the target ran in
-- several: analyses never mix them.
CREATE OR REPLACE TEMP TABLE report_cells AS
SELECT
    * REPLACE (CAST(adaptation AS VARCHAR) AS adaptation),
    CASE WHEN count(DISTINCT dtype) OVER (PARTITION BY target, column_isolation) > 1 THEN dtype END AS column_dtype
FROM (
    SELECT * FROM report_source
    UNION ALL BY NAME  -- an older database has not all of these columns: NULL
    SELECT * FROM unmeasured
);
