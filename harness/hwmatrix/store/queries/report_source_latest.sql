-- The rows of a report over all runs (the view verdicts). Each run has its own order, so positions are computed anew: models in the order
-- of the newest matrix.yaml (others by name), targets in the order of their backends ($backends).
-- older_than is the newest run of the cell's target, if that ran on a later day with other versions or another image.
CREATE OR REPLACE TEMP TABLE report_source AS
WITH newest AS (
    SELECT
        target, column_isolation,
        arg_max(
            struct_pack(run_id := run_id, day := CAST(started_at AS DATE), versions := versions, image_digest := image_digest),
            (started_at, cell_key)
        ) AS last
    FROM verdicts
    WHERE shown AND level IS NOT NULL
    GROUP BY target, column_isolation
),
lines AS (
    SELECT model, arg_max(matrix_line, (created_at, run_id)) AS line
    FROM planned JOIN runs USING (run_id)
    WHERE matrix_line IS NOT NULL
    GROUP BY model
)
SELECT
    v.* EXCLUDE (position, nth, shown, best_timed),
    row_number() OVER (
        ORDER BY l.line NULLS LAST, v.model, v.size <> 'tiny', list_position($backends, v.backend), v.target, v.column_isolation,
            v.batch, v.sequence_length, v.threads, v.new_tokens, list_position($dtypes, v.dtype), v.cell_key, v.hub_id
    ) - 1 AS position,
    CASE
        WHEN v.level IS NOT NULL AND v.run_id <> n.last.run_id AND CAST(v.started_at AS DATE) < n.last.day
             AND (v.versions IS DISTINCT FROM n.last.versions OR v.image_digest IS DISTINCT FROM n.last.image_digest)
        THEN n.last.run_id
    END AS older_than
FROM verdicts v LEFT JOIN newest n USING (target, column_isolation) LEFT JOIN lines l USING (model)
WHERE v.shown;
