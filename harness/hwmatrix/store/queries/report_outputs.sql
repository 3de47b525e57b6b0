-- The outputs of the cells whose measurements count.
SELECT o.cell_id, o.name, o.shape, o.dtype
FROM outputs o JOIN report_cells c USING (cell_id)
WHERE c.stage IS NOT NULL
ORDER BY c.position, c.cell_key, o.name;
