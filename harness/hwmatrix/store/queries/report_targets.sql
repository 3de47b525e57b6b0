-- Every target of the run, one row for each of its shards; a target without a shard has one row with NULLs.
WITH planned_targets AS (
    SELECT target, any_value(backend) AS backend, any_value(execution) AS execution,
           CASE WHEN bool_and(unavailable IS NOT NULL) THEN any_value(unavailable) END AS unavailable, min(position) AS position
    FROM (SELECT p.* EXCLUDE (position), s.position FROM planned p JOIN report_source s USING (run_id, cell_key))
    GROUP BY target
)
SELECT
    t.target AS name, t.backend, t.execution, t.unavailable,
    s.shard_id, s.isolation, s.image, s.image_digest, s.started_at, s.finished_at, s.host, s.interpreter, s.versions,
    s.canary_ok, s.canary_detail
FROM planned_targets t LEFT JOIN shards s ON s.run_id IN (SELECT run_id FROM report_runs) AND s.target = t.target
ORDER BY t.position, t.target, s.started_at, s.shard_id;
