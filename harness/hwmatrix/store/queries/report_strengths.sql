-- The strengths of each target, in each precision: how many models pass, which families pass entirely and which do not, and how often it
-- was faster or slower and took less or more memory than cpu, in full size with the same settings on the same machine (cpu_dtype of
-- views.sql is cpu's precision). Memory is that of inference, or the whole peak if one of the two cells lacks it. Speed is given only for
-- hardware.
WITH beside AS (
    SELECT
        c.*,
        arg_min(struct_pack(peak := peak_mb, run := run_peak_mb), position)
            FILTER (WHERE backend = 'cpu' AND execution = 'hardware' AND status = 'pass' AND peak_mb IS NOT NULL)
            OVER (PARTITION BY host, isolation, model, size, cpu_dtype, batch, sequence_length, threads, new_tokens) AS cpu
    FROM report_cells c
),
cells AS (
    SELECT
        * EXCLUDE (cpu),
        CASE WHEN size = 'full' AND status = 'pass' AND execution = 'hardware' AND backend <> 'cpu' THEN speed_up END AS gain,
        run_peak_mb - cpu.run AS more_running_mb,
        coalesce(more_running_mb, peak_mb - cpu.peak) AS more_mb
    FROM beside
),
families AS (
    SELECT
        target, dtype, column_isolation, family,
        count(*) FILTER (WHERE level IS NOT NULL) AS tried,
        count(*) FILTER (WHERE status = 'pass') AS passed,
        min(position) AS position
    FROM cells GROUP BY ALL
),
by_family AS (
    SELECT
        target, dtype, column_isolation,
        list(family ORDER BY position) FILTER (WHERE tried > 0 AND passed = tried) AS whole,
        list(struct_pack(family := family, passed := passed, tried := tried) ORDER BY position) FILTER (WHERE passed < tried) AS part
    FROM families GROUP BY ALL
),
by_target AS (
    SELECT
        target, dtype, column_isolation, any_value(execution) AS execution, any_value(backend) = 'cpu' AS is_cpu,
        count(*) FILTER (WHERE level IS NOT NULL) AS tried,
        count(*) FILTER (WHERE status = 'pass') AS passed,
        count(gain) AS compared,
        count(*) FILTER (WHERE gain > 1 AND speed_differs) AS faster,
        count(*) FILTER (WHERE gain < 1 AND speed_differs) AS slower,
        min(gain) AS least_gain, max(gain) AS most_gain,
        count(more_mb) FILTER (WHERE gain IS NOT NULL) AS weighed,
        count(more_running_mb) FILTER (WHERE gain IS NOT NULL) AS weighed_running,
        count(*) FILTER (WHERE gain IS NOT NULL AND more_mb > 0) AS heavier,
        count(*) FILTER (WHERE gain IS NOT NULL AND more_mb < 0) AS lighter,
        min(position) AS position
    FROM cells GROUP BY target, dtype, column_isolation
)
SELECT
    target, dtype, column_isolation AS isolation, execution, is_cpu, tried, passed, compared, faster, slower, least_gain, most_gain,
    weighed, weighed_running, heavier, lighter, coalesce(whole, []) AS whole, coalesce(part, []) AS part,
    count(*) OVER (PARTITION BY target, column_isolation) > 1 AS several_dtypes
FROM by_target JOIN by_family USING (target, dtype, column_isolation)
WHERE tried > 0
ORDER BY position;
