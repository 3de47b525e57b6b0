-- Adds the cells of a plan. The parameter is a JSON array of objects: single inserts would take a third of a millisecond per row.
INSERT INTO planned (
    run_id, cell_key, model, size, target, family, architecture, hub_id, dtype, batch, sequence_length, threads, new_tokens,
    execution, backend, isolation, position, unavailable, unbuildable, matrix_line
)
SELECT
    j->>'run_id', j->>'cell_key', j->>'model', j->>'size', j->>'target', j->>'family', j->>'architecture', j->>'hub_id', j->>'dtype',
    CAST(j->>'batch' AS INTEGER), CAST(j->>'sequence_length' AS INTEGER), CAST(j->>'threads' AS INTEGER),
    CAST(j->>'new_tokens' AS INTEGER),
    j->>'execution', j->>'backend', j->>'isolation', CAST(j->>'position' AS INTEGER), j->>'unavailable', j->>'unbuildable',
    CAST(j->>'matrix_line' AS INTEGER)
FROM (SELECT unnest(from_json(CAST(? AS JSON), '["JSON"]')) AS j)
