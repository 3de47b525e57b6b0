-- The cells of the report, in the order of matrix.yaml.
SELECT * EXCLUDE (column_dtype) FROM report_cells ORDER BY position, cell_key;
