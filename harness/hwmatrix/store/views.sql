-- The views of a merged database (schema 1). Every report is a query over these; no statistic is computed anywhere else.

-- The 95 % interval of the median by order statistics: ranks n/2 -+ 0.98 sqrt(n), 1.96 standard deviations of a binomial
-- with p = 1/2. Below 6 samples there is no such interval.
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
FROM sorted;

-- Every planned cell with its latest execution, if there is one. A shard whose canaries failed proves nothing.
CREATE OR REPLACE VIEW results AS
WITH executed AS (
    SELECT c.*, s.isolation, s.image, s.image_digest, s.versions, s.canary_ok, s.canary_detail,
           row_number() OVER (PARTITION BY c.run_id, c.cell_key ORDER BY c.started_at DESC, c.cell_id) AS newest
    FROM cells c JOIN shards s USING (shard_id)
    WHERE c.role = 'model'
)
SELECT
    p.run_id, p.cell_key, p.model, p.size, p.target, p.family, p.architecture, p.hub_id,
    p.dtype, p.batch, p.sequence_length, p.threads, p.execution, p.backend, p.position, p.matrix_line,
    e.cell_id,
    CASE
        WHEN p.unbuildable IS NOT NULL THEN 'factory_error'
        WHEN e.cell_id IS NOT NULL AND e.canary_ok IS NOT TRUE AND e.status NOT IN ('unavailable', 'factory_error') THEN 'infra_error'
        WHEN e.cell_id IS NOT NULL THEN e.status
        WHEN p.unavailable IS NOT NULL THEN 'unavailable'
        ELSE 'not_run'
    END AS status,
    e.stage, e.bundle, e.method, e.on_target, e.placement_detail,
    e.relative_error, e.max_error, e.cosine, e.top1,
    e.load_ms, e.prepare_ms, e.first_ms, e.converged, e.warmup_samples,
    e.baseline_mb, e.load_peak_mb, e.peak_mb, e.delta_mb, e.uss_mb, e.device_peak_mb, e.device_reserved_mb, e.parameters,
    CASE
        WHEN p.unbuildable IS NOT NULL THEN 'unbuildable'
        WHEN e.cell_id IS NOT NULL AND e.canary_ok IS NOT TRUE AND e.status NOT IN ('unavailable', 'factory_error') THEN 'canary_failed'
        WHEN e.cell_id IS NOT NULL THEN e.error_type
        WHEN p.unavailable IS NOT NULL THEN 'target_unavailable'
    END AS error_type,
    CASE
        WHEN p.unbuildable IS NOT NULL THEN 'info'
        WHEN e.cell_id IS NOT NULL AND e.canary_ok IS NOT TRUE AND e.status NOT IN ('unavailable', 'factory_error') THEN 'critical'
        WHEN e.cell_id IS NOT NULL THEN e.severity
        WHEN p.unavailable IS NOT NULL THEN 'info'
    END AS severity,
    CASE
        WHEN p.unbuildable IS NOT NULL THEN p.unbuildable
        WHEN e.cell_id IS NOT NULL AND e.canary_ok IS NOT TRUE AND e.status NOT IN ('unavailable', 'factory_error')
            THEN concat('the canaries of this shard failed: ', coalesce(e.canary_detail, 'the run was cut off before they ended'))
        WHEN e.cell_id IS NOT NULL THEN e.message
        WHEN p.unavailable IS NOT NULL THEN p.unavailable
    END AS message,
    e.traceback, e.needs, e.exit_code, e.signal, e.started_at, e.wall_ms, e.command,
    e.isolation, e.image, e.image_digest, e.versions,
    l.samples, l.p50_ms, l.p90_ms, l.p99_ms, l.mean_ms, l.min_ms, l.max_ms, l.ci_low_ms, l.ci_high_ms, l.cpu_p50_ms,
    -- A one-thread cell whose wall time exceeds its CPU time by 5 % at the median was disturbed by something else.
    CASE WHEN l.cell_id IS NOT NULL AND p.threads = 1 THEN l.p50_ms > 1.05 * l.cpu_p50_ms END AS contended
FROM planned p
LEFT JOIN executed e ON e.run_id = p.run_id AND e.cell_key = p.cell_key AND e.newest = 1
LEFT JOIN latency l USING (cell_id);

-- The compatibility matrix: levels from measurements alone. "No slower than cpu" means: not slower by more than the two
-- intervals leave in doubt.
CREATE OR REPLACE VIEW matrix AS
SELECT
    r.*,
    cpu.p50_ms / nullif(r.p50_ms, 0) AS speed_up,
    CASE
        WHEN r.status = 'pass' AND r.execution <> 'hardware' THEN 'Medium'
        WHEN r.status = 'pass' AND r.on_target >= 1
             AND (r.backend = 'cpu' OR (r.p50_ms IS NOT NULL AND cpu.p50_ms IS NOT NULL
                  AND coalesce(r.ci_low_ms, r.p50_ms) <= coalesce(cpu.ci_high_ms, cpu.p50_ms))) THEN 'High'
        WHEN r.status = 'pass' THEN 'Medium'
        WHEN r.status = 'fallback' THEN 'Low'
        WHEN r.status IN ('mismatch', 'unsupported', 'error', 'oom', 'timeout', 'crash') THEN 'none'
    END AS level
FROM results r
LEFT JOIN results cpu
    ON cpu.run_id = r.run_id AND cpu.model = r.model AND cpu.size = r.size AND cpu.backend = 'cpu' AND cpu.status = 'pass'
   AND cpu.dtype = r.dtype AND cpu.batch = r.batch AND cpu.sequence_length = r.sequence_length AND cpu.threads = r.threads
   AND cpu.isolation = r.isolation AND r.execution = 'hardware';

CREATE OR REPLACE VIEW hardware_results AS
SELECT
    row_number() OVER (ORDER BY started_at, cell_id) AS id,
    coalesce(hub_id, model) AS model_id,
    architecture AS model_type,
    target AS hardware,
    status = 'pass' AS success,
    load_ms / 1000 AS load_time,
    p50_ms / 1000 AS inference_time,
    peak_mb AS memory_usage,
    message AS error,
    started_at AS timestamp,
    (SELECT string_agg(concat(o.name, ' ', CAST(o.shape AS VARCHAR)), '; ' ORDER BY o.name) FROM outputs o WHERE o.cell_id = r.cell_id) AS output_shape
FROM results r
WHERE cell_id IS NOT NULL;

CREATE OR REPLACE VIEW hardware_detection AS
SELECT
    row_number() OVER (ORDER BY detected_at, shard_id, hardware_type) AS id,
    hardware_type, available, name,
    CAST(features AS VARCHAR) AS features,
    detected_at AS timestamp
FROM detections;
