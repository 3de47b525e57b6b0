-- What each target lacks most: operators, versions of the standard and types, by the number of tests that need them.
SELECT target, isolation, need, count(*) AS tests
FROM (SELECT target, isolation, unnest(needs) AS need FROM operator_results WHERE status = 'unsupported')
GROUP BY target, isolation, need
QUALIFY row_number() OVER (PARTITION BY target, isolation ORDER BY tests DESC, need) <= 10
ORDER BY target, isolation, tests DESC, need;
