-- Upgrades a merged database from schema 6 to 7: the table timings is new. It stays empty here, because all cells still have their samples.
CREATE TABLE timings (
    cell_id      VARCHAR NOT NULL,
    samples      INTEGER NOT NULL,
    p50_ms       DOUBLE NOT NULL,
    p90_ms       DOUBLE NOT NULL,
    p99_ms       DOUBLE NOT NULL,
    mean_ms      DOUBLE NOT NULL,
    min_ms       DOUBLE NOT NULL,
    max_ms       DOUBLE NOT NULL,
    ci_low_ms    DOUBLE,
    ci_high_ms   DOUBLE,
    cpu_p50_ms   DOUBLE,
    p25_ms       DOUBLE NOT NULL,
    noise_ms     DOUBLE,
    quantiles_ms DOUBLE[] NOT NULL
);
