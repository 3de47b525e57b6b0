-- Cells of one model with the same settings on one machine, compared in latency, memory and loss: which of them no other beats. One row per
-- cell, in groups with at least two that can be compared. Only hardware is compared: software and emulation have a reason in left_out, as have
-- cells that lack a measurement.
-- loss is the relative error of the outputs against the float32 reference; a float32 cell that passes has none, since its error comes from the
-- order of sums. memory_mb is the peak of the device's memory if the target measures that, else of the process: the two are never compared. Of
-- the process it is the peak of the first inference, without what the conversion took; in groups with a cell that lacks that, it is the peak
-- with the conversion.
-- One cell beats another if it is better in one of the three and no worse in the others. Latencies whose intervals overlap are equal.
WITH passed AS (
    SELECT
        position, target, dtype, model, size, batch, sequence_length, threads, new_tokens, column_isolation, host,
        coalesce(ci_low_ms, p50_ms) AS low_ms, coalesce(ci_high_ms, p50_ms) AS high_ms,
        device_peak_mb, peak_mb, run_peak_mb, device_peak_mb IS NOT NULL AS on_device,
        CASE WHEN dtype IN ('float32', 'default') AND coalesce(precision, dtype) = 'float32' THEN 0 ELSE relative_error END AS loss,
        CASE
            WHEN execution <> 'hardware' THEN execution
            ELSE nullif(concat_ws(' and ',
                CASE WHEN p50_ms IS NULL THEN 'no latency' END,
                CASE WHEN coalesce(device_peak_mb, peak_mb) IS NULL THEN 'no memory' END,
                CASE WHEN relative_error IS NULL THEN 'no loss' END
            ), '')
        END AS left_out
    FROM report_cells
    WHERE status = 'pass'
),
grouped AS (
    SELECT
        *,
        min(position) OVER alike AS first,
        count(*) FILTER (WHERE left_out IS NULL) OVER alike AS compared,
        coalesce(bool_and(run_peak_mb IS NOT NULL) FILTER (WHERE left_out IS NULL AND NOT on_device) OVER alike, false) AS while_running
    FROM passed
    WINDOW alike AS (PARTITION BY model, size, batch, sequence_length, threads, new_tokens, column_isolation, host)
),
groups AS (
    SELECT *, CASE WHEN on_device THEN device_peak_mb WHEN while_running THEN run_peak_mb ELSE peak_mb END AS memory_mb
    FROM grouped WHERE compared > 1
),
beaten AS (
    SELECT b.position, list(a.position ORDER BY a.low_ms, a.position) AS beaten_by
    FROM groups a JOIN groups b ON a.first = b.first AND a.on_device = b.on_device AND a.position <> b.position
    WHERE a.left_out IS NULL AND b.left_out IS NULL
        AND a.low_ms <= b.high_ms AND a.memory_mb <= b.memory_mb AND a.loss <= b.loss
        AND (a.high_ms < b.low_ms OR a.memory_mb < b.memory_mb OR a.loss < b.loss)
    GROUP BY b.position
)
SELECT g.position, g.first, g.memory_mb, g.on_device, g.while_running, g.loss, g.left_out, coalesce(b.beaten_by, []) AS beaten_by
FROM groups g LEFT JOIN beaten b USING (position)
ORDER BY g.first, g.left_out IS NOT NULL, len(coalesce(b.beaten_by, [])) > 0, CASE WHEN g.left_out IS NULL THEN g.low_ms END, g.position;
