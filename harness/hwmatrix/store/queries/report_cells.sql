-- The matrix that is reported, computed once: every other query of a report reads this table. column_dtype is the precision where the target ran in
-- several: analyses never mix them.
CREATE OR REPLACE TEMP TABLE report_cells AS
SELECT
    run_id, older_than, matrix_line, cell_key, cell_id, model, size, target, family, architecture, hub_id, dtype, batch, sequence_length, threads,
    execution, backend, position, status, stage, level, speed_up, speed_differs, speed_contended, method, on_target, placement_detail,
    relative_error, max_error, cosine, load_ms, prepare_ms, first_ms, converged,
    peak_mb, delta_mb, device_peak_mb, memory_detail, parameters,
    samples, p50_ms, p90_ms, p99_ms, mean_ms, min_ms, max_ms, ci_low_ms, ci_high_ms, contended,
    error_type, severity, message, traceback, needs, started_at, command,
    isolation, column_isolation, image_digest, versions, host, inputs, text_path,
    origin, diverges_at, diverges_operator, diverges_error, diverges_given, diverges_against, diverges_detail,
    CAST(adaptation AS VARCHAR) AS adaptation,
    CASE WHEN count(DISTINCT dtype) OVER (PARTITION BY target, column_isolation) > 1 THEN dtype END AS column_dtype
FROM (
    SELECT * FROM report_source
    UNION ALL BY NAME  -- an older database has no such columns: NULL
    SELECT CAST(NULL AS VARCHAR[]) AS inputs, CAST(NULL AS BOOLEAN) AS text_path, CAST(NULL AS VARCHAR) AS origin,
        CAST(NULL AS VARCHAR) AS diverges_at, CAST(NULL AS VARCHAR) AS diverges_operator, CAST(NULL AS DOUBLE) AS diverges_error,
        CAST(NULL AS DOUBLE) AS diverges_given, CAST(NULL AS VARCHAR) AS diverges_against, CAST(NULL AS VARCHAR) AS diverges_detail,
        CAST(NULL AS VARCHAR) AS memory_detail,
        CAST(NULL AS JSON) AS adaptation
    WHERE false
);
