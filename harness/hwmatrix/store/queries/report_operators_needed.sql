-- The operator tests of the operators that the report's cells lack, on the same target in the same isolation.
SELECT DISTINCT n.target, n.isolation, n.need AS name, o.tests, o.passed, o.on_target
FROM (SELECT target, column_isolation AS isolation, unnest(needs) AS need FROM report_cells) n
JOIN operator_coverage o
    ON o.target = n.target AND o.isolation = n.isolation AND n.need = concat_ws('.', nullif(o.domain, ''), o.operator)
ORDER BY n.target, n.isolation, name;
