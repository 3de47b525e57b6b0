-- Pairwise comparisons of hardware on the same models of a family: one machine, the same settings, no software or emulated targets. faster
-- and slower count the cells whose 95 % intervals do not overlap; ratio is the geometric mean of the other's time over this one's.
WITH timed AS (
    SELECT *
    FROM report_cells
    WHERE status = 'pass' AND execution = 'hardware' AND p50_ms > 0 AND workload IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY family, backend, model, size, dtype, batch, sequence_length, threads, new_tokens, isolation, host ORDER BY p50_ms, position
    ) = 1
)
SELECT
    this.family, this.backend AS hardware, other.backend AS other,
    count(*) AS compared,
    count(*) FILTER (WHERE this.ci_high_ms < other.ci_low_ms) AS faster,
    count(*) FILTER (WHERE this.ci_low_ms > other.ci_high_ms) AS slower,
    exp(avg(ln(other.p50_ms / this.p50_ms))) AS ratio,
    count(*) FILTER (WHERE coalesce(this.contended, false) OR coalesce(other.contended, false)) AS contended
FROM timed this
JOIN timed other USING (family, model, size, dtype, batch, sequence_length, threads, new_tokens, isolation, host)
WHERE this.backend <> other.backend
GROUP BY this.family, this.backend, other.backend
ORDER BY min(this.position), hardware, other;
