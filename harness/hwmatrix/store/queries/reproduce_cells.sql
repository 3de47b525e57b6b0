-- Every execution of a model on a target with everything that is needed to reproduce it, the newest run first. Parameters: model, target.
-- output is the worst output. For a mismatch, it is one with an error; outputs that the reference lacks have none.
-- Otherwise, outputs that could not be compared (NaN, another shape) come first.
SELECT
    m.run_id, m.model, m.size, m.target, m.dtype, m.batch, m.sequence_length, m.threads, m.new_tokens,
    m.status, m.stage, m.error_type, m.message, m.method, m.placement_detail, m.relative_error, m.bundle,
    m.kernel_error, m.allowed_error, m."precision", m.failing_prompt, m.preparation,
    m.isolation, m.image, m.image_digest, m.versions, m.command, m.started_at,
    p.cell_key,
    r.hwmatrix_version, r.commit_id, CAST(r.plan AS VARCHAR) AS plan,
    (
        SELECT o.name FROM outputs o WHERE o.cell_id = m.cell_id
        ORDER BY (o.relative_error IS NULL) = (coalesce(m.error_type, 'mismatch') = 'mismatch'), o.relative_error DESC, o.name LIMIT 1
    ) AS output,
    -- The packages that built the bundle: the target's own if it has torch, else those of a target that has it, of the same run or with the
    -- same bundle in another one. A bundle's digest covers them.
    (
        SELECT CAST(s.packages AS VARCHAR) FROM shards s
        WHERE json_extract_string(s.packages, '$.torch') IS NOT NULL AND (
            s.run_id = m.run_id
            OR EXISTS (SELECT 1 FROM matrix b WHERE b.bundle = m.bundle AND b.run_id = s.run_id AND b.target = s.target)
        )
        ORDER BY s.run_id <> m.run_id, s.target <> m.target, s.run_id DESC, s.target LIMIT 1
    ) AS reference_packages
FROM matrix m
JOIN runs r USING (run_id)
JOIN planned p ON p.run_id = m.run_id AND p.cell_key = m.cell_key
WHERE m.target = $target AND m.status <> 'not_run'
  AND lower($model) IN (lower(m.model), lower(m.hub_id), lower(split_part(m.hub_id, '/', 2)))
ORDER BY r.created_at DESC, m.run_id, m.position, m.cell_key;
