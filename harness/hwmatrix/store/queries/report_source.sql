-- The matrix of one run, for its report.
CREATE OR REPLACE TEMP TABLE report_source AS
SELECT *, CAST(NULL AS VARCHAR) AS older_than FROM matrix WHERE run_id = $run_id;
