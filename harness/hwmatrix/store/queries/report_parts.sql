-- The runs that a report is made from, the newest first: how many of the report's cells each run executed, and on which targets.
SELECT
    r.run_id, r.created_at, r.command, r.hwmatrix_version, r.matrix_sha256, r.commit_id, r.isolation,
    count(c.cell_id) AS cells,
    list(DISTINCT c.target ORDER BY c.target) FILTER (c.cell_id IS NOT NULL) AS targets
FROM runs r JOIN report_runs USING (run_id) LEFT JOIN report_source c USING (run_id)
GROUP BY ALL
HAVING count(c.cell_key) > 0
ORDER BY r.created_at DESC, r.run_id DESC;
