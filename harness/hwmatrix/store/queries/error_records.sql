-- The cells that did not pass: for each model, size, target and settings the newest execution on each machine, with its error.
-- evidence.sql selects in the same way.
WITH newest AS (
    SELECT m.*
    FROM matrix m
    JOIN runs r USING (run_id)
    WHERE m.status <> 'not_run'
    QUALIFY row_number() OVER (
        PARTITION BY m.model, m.hub_id, m.size, m.target, m.backend, m.dtype, m.batch, m.sequence_length, m.threads, m.new_tokens, m.isolation, m.host
        ORDER BY r.created_at DESC, m.run_id DESC, m.cell_key
    ) = 1
)
SELECT model, backend, dtype, batch, status, stage, error_type, severity, message, traceback, started_at
FROM newest
WHERE status <> 'pass'
ORDER BY run_id, position, cell_key;
