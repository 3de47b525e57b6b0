-- Every execution of a model on a target with all that is needed to see it again, the newest run first. Parameters: model, target.
-- output is the one that was furthest off. Where numbers were wrong, it is one that has an error: what the reference lacks has none.
-- Else what could not be compared (NaN, another shape) comes before what could.
SELECT
    m.run_id, m.model, m.size, m.target, m.dtype, m.batch, m.sequence_length, m.threads,
    m.status, m.stage, m.error_type, m.message, m.method, m.placement_detail, m.relative_error, m.bundle,
    m.isolation, m.image, m.image_digest, m.versions, m.command, m.started_at,
    p.cell_key,
    r.hwmatrix_version, r.commit_id, CAST(r.plan AS VARCHAR) AS plan,
    (
        SELECT o.name FROM outputs o WHERE o.cell_id = m.cell_id
        ORDER BY (o.relative_error IS NULL) = (coalesce(m.error_type, 'mismatch') = 'mismatch'), o.relative_error DESC, o.name LIMIT 1
    ) AS output,
    -- What built the bundle: the target's own packages where it has torch, else those of a target of the same run that has.
    (
        SELECT CAST(s.packages AS VARCHAR) FROM shards s
        WHERE s.run_id = m.run_id AND json_extract_string(s.packages, '$.torch') IS NOT NULL
        ORDER BY s.target <> m.target, s.target LIMIT 1
    ) AS reference_packages
FROM matrix m
JOIN runs r USING (run_id)
JOIN planned p ON p.run_id = m.run_id AND p.cell_key = m.cell_key
WHERE m.target = $target AND m.status <> 'not_run'
  AND lower($model) IN (lower(m.model), lower(m.hub_id), lower(split_part(m.hub_id, '/', 2)))
ORDER BY r.created_at DESC, m.run_id, m.position, m.cell_key;
