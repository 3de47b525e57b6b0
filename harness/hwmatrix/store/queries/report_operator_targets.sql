-- The results of the operator tests on each target: of the operators themselves, and of their definitions in terms of others (expanded).
SELECT
    target, isolation, expanded,
    arg_max(versions, started_at) AS versions,
    arg_max(device, started_at) AS device,
    max(started_at) AS started_at,
    count(*) AS tests,
    count(*) FILTER (status = 'pass') AS passed,
    count(*) FILTER (status = 'pass' AND on_target >= 1) AS on_target,
    count(*) FILTER (status = 'fallback') AS fallback,
    count(*) FILTER (status = 'mismatch') AS mismatch,
    count(*) FILTER (status = 'unsupported') AS unsupported,
    count(*) FILTER (status = 'error') AS error,
    count(*) FILTER (status IN ('crash', 'timeout', 'oom')) AS ended
FROM operator_results
GROUP BY target, isolation, expanded
ORDER BY expanded, target, isolation;
