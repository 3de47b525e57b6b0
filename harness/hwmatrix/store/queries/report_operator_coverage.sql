-- Every operator that was tested, on every target.
SELECT domain, operator, target, isolation, tests, passed, on_target, fallback, mismatch, unsupported, error, ended
FROM operator_coverage
ORDER BY domain, operator, target, isolation;
