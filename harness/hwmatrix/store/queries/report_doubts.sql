-- Reasons for reduced confidence in a cell, one per row: a poor timing (not judged for emulators, whose time is not a speed), or a newer
-- image or run of its target. Timing takes at least 30 samples unless time runs out (MeasureRule in records/plans.py).
WITH newest AS (
    SELECT target, isolation, arg_max(image_digest, (started_at, shard_id)) AS newest_digest
    FROM shards
    WHERE image_digest IS NOT NULL
    GROUP BY target, isolation
),
timed AS (
    SELECT * FROM report_cells WHERE status = 'pass' AND execution <> 'emulated' AND p50_ms IS NOT NULL
)
SELECT doubt, detail, cell_key, model, target, column_isolation AS isolation
FROM (
    SELECT 'its timing did not converge' AS doubt, 'time was up before the interval was narrow enough' AS detail, * FROM timed WHERE NOT converged
    UNION ALL BY NAME
    SELECT 'it was disturbed while it was timed' AS doubt, 'something else used the processor or the device' AS detail, * FROM timed WHERE contended
    UNION ALL BY NAME
    SELECT 'it has fewer than 30 samples' AS doubt, concat(samples, if(samples = 1, ' sample', ' samples')) AS detail, * FROM timed WHERE samples < 30
    UNION ALL BY NAME
    SELECT 'its target has a newer image' AS doubt, concat('executed in ', image_digest, ', the newest is ', newest_digest) AS detail, c.*
    FROM report_cells c JOIN newest USING (target, isolation)
    WHERE image_digest <> newest_digest AND older_than IS NULL
    UNION ALL BY NAME
    SELECT
        'it is older than the newest run of its target' AS doubt,
        concat('executed on ', strftime(started_at, '%Y-%m-%d'), '; run ', older_than, ' had other versions or another image') AS detail, *
    FROM report_cells WHERE older_than IS NOT NULL
)
ORDER BY doubt, position, cell_key;
