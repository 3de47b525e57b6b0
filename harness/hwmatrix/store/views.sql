-- The views of a merged database. Every report is a query over these; no statistic is computed anywhere else.

-- The 95 % interval of the median by order statistics: ranks n/2 -+ 0.98 sqrt(n), 1.96 standard deviations of a binomial
-- with p = 1/2. Fewer than 6 samples have no such interval. Published databases keep these numbers instead of the samples.
CREATE OR REPLACE VIEW latency AS
WITH sorted AS (
    SELECT cell_id, list_sort(list(wall_ns)) AS wall, list_sort(list(cpu_ns)) AS cpu, count(*) AS n
    FROM samples GROUP BY cell_id
)
SELECT
    cell_id,
    n AS samples,
    list_aggregate(wall, 'quantile_cont', 0.50) / 1e6 AS p50_ms,
    list_aggregate(wall, 'quantile_cont', 0.90) / 1e6 AS p90_ms,
    list_aggregate(wall, 'quantile_cont', 0.99) / 1e6 AS p99_ms,
    list_avg(wall) / 1e6 AS mean_ms,
    wall[1] / 1e6 AS min_ms,
    wall[n] / 1e6 AS max_ms,
    CASE WHEN n >= 6 THEN wall[greatest(1, CAST(floor(n / 2.0 - 0.98 * sqrt(n)) AS INTEGER))] / 1e6 END AS ci_low_ms,
    CASE WHEN n >= 6 THEN wall[least(n, CAST(ceil(1 + n / 2.0 + 0.98 * sqrt(n)) AS INTEGER))] / 1e6 END AS ci_high_ms,
    list_aggregate(cpu, 'quantile_cont', 0.50) / 1e6 AS cpu_p50_ms
FROM sorted
UNION ALL
SELECT cell_id, samples, p50_ms, p90_ms, p99_ms, mean_ms, min_ms, max_ms, ci_low_ms, ci_high_ms, cpu_p50_ms FROM timings;

-- The lower quartile of each cell's samples, which is the least sensitive to disturbances, and their noise: 1.4826 times the median absolute
-- deviation of the lower quartiles of ten consecutive parts (for a normal distribution, the standard deviation). It shows slow drift during
-- the timing, which the interval of all samples does not. A cell with fewer than ten samples has as many parts as samples.
CREATE OR REPLACE VIEW noises AS
WITH parts AS (
    SELECT cell_id, part, quantile_cont(wall_ns, 0.25) / 1e6 AS p25_ms
    FROM (SELECT cell_id, wall_ns, ntile(10) OVER (PARTITION BY cell_id ORDER BY n) AS part FROM samples)
    GROUP BY cell_id, part
),
apart AS (
    SELECT cell_id, 1.4826 * mad(p25_ms) AS noise_ms FROM parts GROUP BY cell_id
),
quarter AS (
    SELECT cell_id, quantile_cont(wall_ns, 0.25) / 1e6 AS p25_ms FROM samples GROUP BY cell_id
)
SELECT cell_id, p25_ms, noise_ms FROM quarter LEFT JOIN apart USING (cell_id)
UNION ALL
SELECT cell_id, p25_ms, noise_ms FROM timings;

-- The distribution of each cell's samples: their quantiles in steps of 0.05. Milliseconds.
CREATE OR REPLACE VIEW spreads AS
SELECT
    cell_id,
    quantile_cont(
        wall_ns / 1e6,
        [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0]
    ) AS quantiles_ms
FROM samples
GROUP BY cell_id
UNION ALL
SELECT cell_id, quantiles_ms FROM timings;

-- Retries of failed cells with changed settings: cell_key is the failed cell's key, attempt_key the retry's own. Only the latest execution of
-- each retry. A retry counts only for executions of the cell that began before it.
CREATE OR REPLACE VIEW adaptations AS
SELECT * EXCLUDE (newest)
FROM (
    SELECT
        c.run_id, c.adapted_from AS cell_key, c.cell_key AS attempt_key, c.adaptation,
        CASE WHEN s.canary_ok IS TRUE OR c.status IN ('unavailable', 'fallback', 'factory_error', 'infra_error')
             THEN c.status ELSE 'infra_error' END AS status,
        c.stage, c.dtype, c.batch, c.sequence_length, c.threads, coalesce(c.new_tokens, 0) AS new_tokens, c.execution, c.bundle, c.preparation,
        c.replaced, c.on_target, c.placement_detail,
        c.relative_error, c.max_error, c.cosine, c.peak_mb, c.error_type, c.severity, c.message, c.started_at, c.wall_ms, c.command,
        s.isolation, s.image_digest, s.versions,
        row_number() OVER (
            PARTITION BY c.run_id, c.cell_key
            ORDER BY s.canary_ok IS NOT TRUE OR c.status IN ('unavailable', 'factory_error', 'infra_error'), c.status = 'infra_error',
                c.started_at DESC, c.cell_id
        ) AS newest
    FROM cells c JOIN shards s USING (shard_id)
    WHERE c.role = 'adapted'
)
WHERE newest = 1;

-- Every planned cell with its latest execution, if there is one. A shard whose canaries failed, or never ran, is not trustworthy:
-- its cells keep their command and their identity, but no measurement.
-- isolation is where the cell was executed; column_isolation is the column of the cell, which it has even if it was not executed.
CREATE OR REPLACE VIEW results AS
WITH trusted AS (
    SELECT c.*, s.isolation, s.image, s.image_digest, s.versions, s.host, s.canary_detail,
           s.canary_ok IS TRUE OR c.status IN ('unavailable', 'fallback', 'factory_error', 'infra_error') AS believed
    FROM cells c JOIN shards s USING (shard_id)
    WHERE c.role = 'model'
),
executed AS (                              -- what says nothing about the model never hides a verdict of the same run, whatever the clock said
    SELECT
        *,
        row_number() OVER (
            PARTITION BY run_id, cell_key
            ORDER BY NOT believed OR status IN ('unavailable', 'factory_error', 'infra_error'), status = 'infra_error', started_at DESC, cell_id
        ) AS newest
    FROM trusted
),
measured AS (                               -- the measurements of trustworthy cells
    SELECT * EXCLUDE (
        shard_id, run_id, cell_key, role, model, size, target, family, architecture, hub_id, dtype, batch, sequence_length, threads, new_tokens, execution,
        status, error_type, severity, message, adapted_from, adaptation, started_at, wall_ms, command,
        isolation, image, image_digest, versions, host, canary_detail, believed, newest
    )
    FROM executed WHERE believed
),
host_memory AS (
    SELECT cell_id, baseline_mb, load_peak_mb, run_peak_mb, peak_mb, delta_mb, uss_mb, memory_detail FROM measured
),
worked AS (                                 -- the change that made a failed cell pass, among retries since its latest execution
    SELECT run_id, cell_key, arg_max(a.adaptation, a.started_at) AS adaptation
    FROM adaptations a JOIN executed e USING (run_id, cell_key)
    WHERE e.newest = 1 AND a.status = 'pass' AND a.started_at >= e.started_at
    GROUP BY run_id, cell_key
),
isolations AS (
    SELECT run_id, target, CASE WHEN count(DISTINCT isolation) = 1 THEN any_value(isolation) END AS isolation
    FROM shards GROUP BY run_id, target
)
SELECT
    p.run_id, p.cell_key, p.model, p.size, p.target, p.family, p.architecture, p.hub_id,
    p.dtype, p.batch, p.sequence_length, p.threads, coalesce(p.new_tokens, 0) AS new_tokens, p.execution, p.backend, p.position, p.matrix_line,
    e.cell_id,
    CASE
        WHEN p.unbuildable IS NOT NULL THEN 'factory_error'
        WHEN e.believed THEN e.status
        WHEN e.cell_id IS NOT NULL THEN 'infra_error'
        WHEN p.unavailable IS NOT NULL THEN 'unavailable'
        ELSE 'not_run'
    END AS status,
    e.bundle, m.* EXCLUDE (cell_id, bundle, baseline_mb, load_peak_mb, run_peak_mb, peak_mb, delta_mb, uss_mb),
    h.baseline_mb, h.load_peak_mb, h.run_peak_mb, h.peak_mb, h.delta_mb, h.uss_mb,
    CASE
        WHEN p.unbuildable IS NOT NULL THEN 'unbuildable'
        WHEN e.believed THEN e.error_type
        WHEN e.cell_id IS NOT NULL THEN 'canary_failed'
        WHEN p.unavailable IS NOT NULL THEN 'target_unavailable'
    END AS error_type,
    CASE
        WHEN p.unbuildable IS NOT NULL THEN 'info'
        WHEN e.believed THEN e.severity
        WHEN e.cell_id IS NOT NULL THEN 'critical'
        WHEN p.unavailable IS NOT NULL THEN 'info'
    END AS severity,
    CASE
        WHEN p.unbuildable IS NOT NULL THEN p.unbuildable
        WHEN e.believed THEN e.message
        WHEN e.cell_id IS NOT NULL
            THEN concat('the canaries of this shard failed: ', coalesce(e.canary_detail, 'the run was cut off before they ended'))
        WHEN p.unavailable IS NOT NULL THEN p.unavailable
    END AS message,
    CASE WHEN m.cell_id IS NOT NULL AND e.status <> 'pass' THEN w.adaptation END AS adaptation, e.started_at, e.wall_ms, e.command,
    e.isolation, e.image, e.image_digest, e.versions, e.host,
    coalesce(e.isolation, i.isolation, p.isolation, u.isolation) AS column_isolation,
    l.samples, l.p50_ms, l.p90_ms, l.p99_ms, l.mean_ms, l.min_ms, l.max_ms, l.ci_low_ms, l.ci_high_ms, l.cpu_p50_ms,
    -- Disturbed by other work: on devices that count their processes, if there was another; else, for one-thread cells, if the median
    -- wall time exceeds the CPU time by 5 %.
    CASE
        WHEN l.cell_id IS NULL THEN NULL
        WHEN m.device_processes IS NOT NULL THEN m.device_processes > 0
        WHEN p.threads = 1 THEN l.p50_ms > 1.05 * l.cpu_p50_ms
    END AS contended
FROM planned p
JOIN runs u USING (run_id)
LEFT JOIN executed e ON e.run_id = p.run_id AND e.cell_key = p.cell_key AND e.newest = 1
LEFT JOIN measured m ON m.cell_id = e.cell_id AND p.unbuildable IS NULL
-- Before schema 6, the memory recorded for a cell in a browser is that of the harness process, which says nothing about the model.
LEFT JOIN host_memory h ON h.cell_id = m.cell_id AND (p.backend NOT IN ('webgpu', 'webnn') OR h.memory_detail IS NOT NULL)
LEFT JOIN worked w ON w.run_id = p.run_id AND w.cell_key = p.cell_key
LEFT JOIN isolations i ON i.run_id = p.run_id AND i.target = p.target
LEFT JOIN latency l ON l.cell_id = m.cell_id;

-- The compatibility matrix: levels from measurements alone.
-- speed_up is over cpu in float32, with the same model, batch, length and threads, in the same run, on the same machine, in the same isolation. It is NULL for that
-- baseline itself. own_speed_up is the same over the target's own float32.
-- speed_differs: the 95 % intervals of the two medians do not overlap; only then is speed_up meaningful. speed_contended: one of the two was
-- disturbed while it was timed. Where speed_differs and not speed_contended, the speed counts: in averages, and for the level.
-- own_speed_up is NULL unless it counts.
-- level_reason: why a cell that passed is Low (model changed) or Medium.
CREATE OR REPLACE VIEW matrix AS
WITH compared AS (
    SELECT
        *,
        arg_min(struct_pack(cell_id := cell_id, p50 := p50_ms, low := ci_low_ms, high := ci_high_ms, contended := contended), position)
            FILTER (WHERE backend = 'cpu' AND dtype = 'float32' AND execution = 'hardware' AND status = 'pass' AND p50_ms IS NOT NULL)
            OVER (PARTITION BY run_id, host, isolation, model, size, batch, sequence_length, threads, new_tokens) AS cpu,
        arg_min(struct_pack(cell_id := cell_id, p50 := p50_ms, low := ci_low_ms, high := ci_high_ms, contended := contended), position)
            FILTER (WHERE dtype = 'float32' AND execution = 'hardware' AND status = 'pass' AND p50_ms IS NOT NULL)
            OVER (PARTITION BY run_id, host, isolation, model, size, batch, sequence_length, threads, new_tokens, target) AS own,
        status = 'pass' AND execution = 'hardware' AND p50_ms > 0 AS timed
    FROM results
),
sped AS (
    SELECT
        * EXCLUDE (cpu, own, timed),
        CASE WHEN timed AND cpu.cell_id <> cell_id THEN cpu.p50 / p50_ms END AS speed_up,
        timed AND coalesce(cpu.cell_id <> cell_id AND (ci_high_ms < cpu.low OR ci_low_ms > cpu.high), false) AS speed_differs,
        coalesce(contended, false) OR coalesce(cpu.contended, false) AS speed_contended,
        CASE
            WHEN timed AND own.cell_id <> cell_id AND (ci_high_ms < own.low OR ci_low_ms > own.high)
                 AND NOT coalesce(contended, false) AND NOT coalesce(own.contended, false) THEN own.p50 / p50_ms
        END AS own_speed_up
    FROM compared
),
doubted AS (
    SELECT
        *,
        CASE WHEN status = 'pass' THEN nullif(concat_ws(', ',
            CASE WHEN list_has_any(preparation, ['replaced_operators', 'raised_masks', 'renamed_constants', 'kept_integers'])
                THEN 'model changed' END,
            CASE WHEN execution <> 'hardware' THEN execution END,
            CASE WHEN approximate THEN 'approximate' END,
            CASE WHEN on_target IS NULL THEN 'placement unknown' WHEN on_target < 1 THEN 'partly placed' END,
            CASE WHEN speed_differs AND NOT speed_contended AND speed_up < 1 THEN 'slower than cpu' END
        ), '') END AS level_reason
    FROM sped
)
SELECT
    *,
    CASE
        WHEN level_reason LIKE 'model changed%' THEN 'Low'
        WHEN status = 'pass' AND level_reason IS NULL THEN 'High'
        WHEN status = 'pass' THEN 'Medium'
        WHEN status = 'fallback' OR adaptation IS NOT NULL THEN 'Low'
        WHEN status IN ('mismatch', 'unsupported', 'error', 'oom', 'timeout', 'crash') THEN 'none'
    END AS level
FROM doubted;

-- The verdicts on every cell over all runs, the latest first. A cell is identified by its model, target, size, precision, batch, length,
-- threads and isolation, not by the machine. An execution without a verdict (unavailable, not_run, factory_error, infra_error) counts only
-- if no run has one. nth is 1 for the latest.
-- best_timed marks the latest execution that passed and was timed, shown the one that a report over all runs shows: the latest, but the
-- last timed one if both passed with the same versions, on hardware. Both marked executions are the latest of their kind, whatever was
-- executed between them: only then do databases give the same verdicts in whatever order they are merged.
CREATE OR REPLACE VIEW verdicts AS
WITH known AS (
    SELECT m.*, r.created_at, m.status = 'pass' AND m.ci_low_ms IS NOT NULL AS timed, m.execution = 'hardware' AS real
    FROM matrix m JOIN runs r USING (run_id)
),
ranked AS (
    SELECT
        *,
        row_number() OVER cell AS nth,
        first_value(status) OVER cell AS last_status,
        first_value(versions) OVER cell AS last_versions
    FROM known
    WINDOW cell AS (
        PARTITION BY model, hub_id, size, target, backend, dtype, batch, sequence_length, threads, new_tokens, column_isolation
        ORDER BY level IS NULL, started_at DESC NULLS LAST, created_at DESC, run_id DESC
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    )
),
marked AS (
    SELECT
        *,
        timed AND row_number() OVER (
            PARTITION BY model, hub_id, size, target, backend, dtype, batch, sequence_length, threads, new_tokens, column_isolation
            ORDER BY NOT timed, nth
        ) = 1 AS best_timed
    FROM ranked
),
judged AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY model, hub_id, size, target, backend, dtype, batch, sequence_length, threads, new_tokens, column_isolation
            ORDER BY best_timed AND real AND last_status = 'pass' AND versions IS NOT DISTINCT FROM last_versions DESC, nth
        ) = 1 AS shown
    FROM marked
)
SELECT * EXCLUDE (created_at, timed, real, last_status, last_versions) FROM judged;

-- Which cells are counted and averaged. A model is counted once, by its name. A workload is one forward pass, or one generation, of a model in
-- one size: in its smallest batch, then its smallest number of tokens, then the fewest threads of its target in its precision. Cells with other batches, lengths
-- or threads are no workloads (NULL): they are shown as cells, and nothing is averaged or ranked over them.
CREATE OR REPLACE MACRO workload_of(model, size, target, isolation, dtype, batch, sequence_length, threads, new_tokens) AS CASE
    WHEN struct_pack(b := batch, s := sequence_length, n := new_tokens)
        = min(struct_pack(b := batch, s := sequence_length, n := new_tokens)) OVER (PARTITION BY model, size, new_tokens > 0)
        AND threads = min(threads) OVER (PARTITION BY model, size, new_tokens > 0, target, isolation, dtype)
    THEN CASE WHEN new_tokens > 0 THEN 'generation' ELSE 'forward' END
END;

-- The latest verdict on each workload, over all runs of the database.
CREATE OR REPLACE VIEW workloads AS
SELECT *, workload_of(model, size, target, column_isolation, dtype, batch, sequence_length, threads, new_tokens) AS workload
FROM verdicts
WHERE shown
QUALIFY workload IS NOT NULL;

-- The processor on which each cell was executed, and its instruction sets.
CREATE OR REPLACE VIEW machines AS
SELECT
    c.cell_id, any_value(d.name) AS processor,
    array_to_string(list_sort(from_json(any_value(d.features) -> 'instructions', '["VARCHAR"]')), ' ') AS instructions
FROM cells c JOIN detections d USING (shard_id)
WHERE d.hardware_type = 'cpu' AND d.available
GROUP BY c.cell_id;

-- The models of each run as its plan describes them, with each batch and length: one row each. weights says what was executed: random (from a
-- recipe's configuration or from the model type alone), trained, hub, or checkpoint (a folder).
CREATE OR REPLACE VIEW planned_models AS
SELECT
    run_id, m ->> 'name' AS model, m ->> 'size' AS size, CAST(m ->> 'batch' AS INTEGER) AS batch, CAST(m ->> 'sequence_length' AS INTEGER) AS sequence_length,
    any_value(CASE
        WHEN m ->> 'trained' = 'true' THEN 'trained'
        WHEN coalesce(m ->> 'weights', 'recipe') IN ('recipe', 'factory') THEN 'random'
        WHEN m ->> 'weights' = 'hub' OR ends_with(m ->> 'weights', concat('/snapshots/', m ->> 'revision')) THEN 'hub'
        ELSE 'checkpoint'
    END) AS weights,
    any_value(m) AS plan
FROM (SELECT run_id, unnest(from_json(plan -> 'models', '["JSON"]')) AS m FROM runs)
GROUP BY ALL;

-- Every executed cell, one row each, with the columns that the design documents promise, and the columns that are needed to compare two of
-- them. weights: see planned_models; NULL: not in the run's plan. model_id is the hub's name only if the weights are the hub's; hub_id is
-- the model that has this shape.
-- id numbers the rows of this database; cell_id is the same in every database.
CREATE OR REPLACE VIEW hardware_results AS
SELECT
    row_number() OVER (ORDER BY started_at, cell_id) AS id,
    CASE WHEN d.weights = 'hub' THEN coalesce(hub_id, model) ELSE model END AS model_id,
    architecture AS model_type,
    target AS hardware,
    status = 'pass' AS success,
    load_ms / 1000 AS load_time,
    CASE WHEN execution <> 'emulated' THEN p50_ms / 1000 END AS inference_time,  -- an emulator's time is not the hardware's
    peak_mb AS memory_usage,
    message AS error,
    started_at AS timestamp,
    (SELECT string_agg(concat(o.name, ' ', CAST(o.shape AS VARCHAR)), '; ' ORDER BY o.name) FROM outputs o WHERE o.cell_id = r.cell_id) AS output_shape,
    size, dtype, batch, sequence_length, threads, new_tokens, execution, d.weights, hub_id, cell_id
FROM results r
LEFT JOIN planned_models d USING (run_id, model, size, batch, sequence_length)
WHERE cell_id IS NOT NULL;

CREATE OR REPLACE VIEW hardware_detection AS
SELECT
    row_number() OVER (ORDER BY detected_at, shard_id, hardware_type) AS id,
    hardware_type, available, name,
    CAST(features AS VARCHAR) AS features,
    detected_at AS timestamp
FROM detections;

-- The latest execution of every operator test on every target, from shards whose canaries ended as expected.
CREATE OR REPLACE VIEW operator_results AS
SELECT * EXCLUDE (newest)
FROM (
    SELECT o.*, s.run_id, s.isolation, s.started_at, s.versions, s.canary_detail AS device,
           row_number() OVER (PARTITION BY o.target, s.isolation, o.test ORDER BY s.started_at DESC, s.shard_id) AS newest
    FROM operators o JOIN shards s USING (shard_id)
    WHERE s.canary_ok
)
WHERE newest = 1;

-- The results of each operator on each target: only tests of the operator itself, not of its definition in terms of others.
CREATE OR REPLACE VIEW operator_coverage AS
SELECT
    target, isolation, domain, operator,
    count(*) AS tests,
    count(*) FILTER (status = 'pass') AS passed,
    count(*) FILTER (status = 'pass' AND on_target >= 1) AS on_target,
    count(*) FILTER (status = 'fallback') AS fallback,
    count(*) FILTER (status = 'mismatch') AS mismatch,
    count(*) FILTER (status = 'unsupported') AS unsupported,
    count(*) FILTER (status = 'error') AS error,
    count(*) FILTER (status IN ('crash', 'timeout', 'oom')) AS ended
FROM operator_results
WHERE NOT expanded
GROUP BY target, isolation, domain, operator;
