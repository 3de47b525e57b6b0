-- The runs of a history that executed models, oldest first: their release names, and how their cells ended.
SELECT
    r.run_id, l.release, r.created_at, r.hwmatrix_version, r.commit_id, r.isolation,
    count(*) AS cells,
    count(*) FILTER (m.status = 'pass') AS passed,
    count(*) FILTER (m.status IN ('mismatch', 'fallback', 'unsupported', 'error', 'oom', 'timeout', 'crash')) AS failed,
    count(*) FILTER (m.status NOT IN ('pass', 'mismatch', 'fallback', 'unsupported', 'error', 'oom', 'timeout', 'crash')) AS no_verdict,
    list(DISTINCT m.target ORDER BY m.target) FILTER (m.cell_id IS NOT NULL AND m.status <> 'unavailable') AS targets
FROM results m JOIN runs r USING (run_id) LEFT JOIN releases l USING (run_id)
GROUP BY ALL
ORDER BY r.created_at, r.run_id;
