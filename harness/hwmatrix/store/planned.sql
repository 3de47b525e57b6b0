-- Adds the cells of a plan from the registered columns new_planned, in which an empty text and the line -1 stand for NULL.
INSERT INTO planned (
    run_id, cell_key, model, size, target, family, architecture, hub_id, dtype, batch, sequence_length, threads, new_tokens,
    execution, backend, isolation, position, unavailable, unbuildable, matrix_line
)
SELECT
    $run_id, cell_key, model, size, target, family, architecture, nullif(hub_id, ''), dtype, batch, sequence_length, threads, new_tokens,
    execution, backend, isolation, position, nullif(unavailable, ''), nullif(unbuildable, ''), nullif(matrix_line, -1)
FROM new_planned
