-- The runs to report: the requested one, or all runs of a database that keeps the latest verdicts of many.
CREATE OR REPLACE TEMP TABLE report_runs AS
SELECT run_id FROM runs WHERE $run_id IS NULL OR run_id = $run_id;
