-- The cells of the report, in the order of matrix.yaml.
SELECT * FROM report_cells ORDER BY position, cell_key;
