-- The tables of a shard and of a merged database. Reports read the views of views.sql, never these directly.
-- The line MEASURED stands for the fields of records.Measured, which documents them (cell_columns.py inserts them).
-- Times end in _ms (wall clock) or _ns, memory in _mb (MiB). NULL means: not measured.

CREATE TABLE meta (
    key   VARCHAR PRIMARY KEY,
    value VARCHAR NOT NULL
);

CREATE TABLE runs (
    run_id           VARCHAR PRIMARY KEY,
    created_at       TIMESTAMP NOT NULL,
    command          VARCHAR NOT NULL,
    hwmatrix_version VARCHAR NOT NULL,
    matrix_sha256    VARCHAR NOT NULL,
    commit_id        VARCHAR,
    isolation        VARCHAR NOT NULL,
    plan             JSON NOT NULL          -- the whole plan, as the runner received it
);

CREATE TABLE planned (                      -- the cells of a run's plan; those without a row in cells are not_run
    run_id          VARCHAR NOT NULL,
    cell_key        VARCHAR NOT NULL,
    model           VARCHAR NOT NULL,
    size            VARCHAR NOT NULL,
    target          VARCHAR NOT NULL,
    family          VARCHAR NOT NULL,
    architecture    VARCHAR NOT NULL,
    hub_id          VARCHAR,
    dtype           VARCHAR NOT NULL,
    batch           INTEGER NOT NULL,
    sequence_length INTEGER NOT NULL,
    threads         INTEGER NOT NULL,
    new_tokens      INTEGER DEFAULT 0,      -- generated after the prompt; 0: one forward pass
    execution       VARCHAR NOT NULL,
    backend         VARCHAR NOT NULL,
    isolation       VARCHAR,                -- of this target; NULL: the run's
    position        INTEGER NOT NULL,       -- the order of matrix.yaml
    unavailable     VARCHAR,                -- why the target cannot run here
    unbuildable     VARCHAR,                -- why the model cannot be built
    matrix_line     INTEGER
);

CREATE TABLE shards (
    shard_id       VARCHAR PRIMARY KEY,
    run_id         VARCHAR NOT NULL,
    target         VARCHAR NOT NULL,
    isolation      VARCHAR NOT NULL,
    image          VARCHAR,                 -- the image's tag; NULL outside a container
    image_digest   VARCHAR,                 -- sha256 of the image; of the requirements for a virtual environment
    started_at     TIMESTAMP NOT NULL,
    finished_at    TIMESTAMP,               -- NULL: the run was interrupted
    host           VARCHAR NOT NULL,        -- a hash of the machine's identity, so that machines are not mixed
    interpreter    VARCHAR NOT NULL,
    versions       JSON NOT NULL,           -- the versions of the packages that matter for this target
    packages       JSON NOT NULL,           -- the versions of all installed packages
    canary_ok      BOOLEAN,                 -- NULL: interrupted before they ended, or nothing ran on the target
    canary_detail  VARCHAR,
    warm_up_ms     DOUBLE,                  -- import of the frameworks, once per shard
    sha256         VARCHAR                  -- of the shard's file; filled by the merge
);

CREATE TABLE detections (
    shard_id      VARCHAR NOT NULL,
    hardware_type VARCHAR NOT NULL,
    available     BOOLEAN NOT NULL,
    name          VARCHAR,
    features      JSON NOT NULL,
    reason        VARCHAR,
    detected_at   TIMESTAMP NOT NULL
);

CREATE TABLE cells (
    cell_id          VARCHAR PRIMARY KEY,
    shard_id         VARCHAR NOT NULL,
    run_id           VARCHAR NOT NULL,
    cell_key         VARCHAR NOT NULL,
    role             VARCHAR NOT NULL,      -- model, adapted, canary_good, canary_wrong
    model            VARCHAR NOT NULL,
    size             VARCHAR NOT NULL,
    target           VARCHAR NOT NULL,
    family           VARCHAR NOT NULL,
    architecture     VARCHAR NOT NULL,
    hub_id           VARCHAR,
    dtype            VARCHAR NOT NULL,
    batch            INTEGER NOT NULL,
    sequence_length  INTEGER NOT NULL,
    threads          INTEGER NOT NULL,
    new_tokens       INTEGER DEFAULT 0,
    status           VARCHAR NOT NULL,
    stage            VARCHAR NOT NULL,      -- the last stage that was entered
    execution        VARCHAR NOT NULL,
    -- MEASURED
    error_type       VARCHAR,
    severity         VARCHAR,
    message          VARCHAR USING COMPRESSION 'zstd',
    traceback        VARCHAR USING COMPRESSION 'zstd',
    needs            VARCHAR[],             -- operators or features that the target lacks
    exit_code        INTEGER,
    signal           INTEGER,
    adapted_from     VARCHAR,               -- for an adapted cell: the key of the failed cell
    adaptation       JSON,                  -- the settings that were changed: {"batch": 4}
    started_at       TIMESTAMP NOT NULL,
    wall_ms          DOUBLE NOT NULL,       -- of the whole cell, from the fork to the end
    command          VARCHAR NOT NULL USING COMPRESSION 'zstd' -- repeats this cell alone
);

CREATE TABLE stages (
    cell_id VARCHAR NOT NULL,
    stage   VARCHAR NOT NULL,
    wall_ms DOUBLE NOT NULL
);

CREATE TABLE outputs (
    cell_id        VARCHAR NOT NULL,
    name           VARCHAR NOT NULL,
    shape          INTEGER[] NOT NULL,
    dtype          VARCHAR NOT NULL,
    relative_error DOUBLE,
    max_error      DOUBLE,
    cosine         DOUBLE,
    top1           DOUBLE
);

CREATE TABLE samples (                      -- no key: it would make the file four to six times larger
    cell_id VARCHAR NOT NULL,
    n       INTEGER NOT NULL,
    wall_ns BIGINT NOT NULL,
    cpu_ns  BIGINT                          -- NULL: measured by the device's own clock
);

CREATE TABLE timings (                      -- statistics of cells whose samples were left out of a published database
    cell_id      VARCHAR NOT NULL,
    samples      INTEGER NOT NULL,          -- their number; the next columns are those of the view latency
    p50_ms       DOUBLE NOT NULL,
    p90_ms       DOUBLE NOT NULL,
    p99_ms       DOUBLE NOT NULL,
    mean_ms      DOUBLE NOT NULL,
    min_ms       DOUBLE NOT NULL,
    max_ms       DOUBLE NOT NULL,
    ci_low_ms    DOUBLE,
    ci_high_ms   DOUBLE,
    cpu_p50_ms   DOUBLE,
    p25_ms       DOUBLE NOT NULL,           -- the lower quartile; the next column is the noise (view noises)
    noise_ms     DOUBLE,
    quantiles_ms DOUBLE[] NOT NULL          -- the quantiles 0, 0.05, ..., 1
);

CREATE TABLE operators (                    -- the ONNX standard's tests of single operators, executed by a target
    shard_id   VARCHAR NOT NULL,
    target     VARCHAR NOT NULL,
    test       VARCHAR NOT NULL,
    operator   VARCHAR NOT NULL,
    domain     VARCHAR NOT NULL,            -- empty: the ONNX standard's own
    opset      INTEGER NOT NULL,            -- the version of the domain's operators
    expanded   BOOLEAN NOT NULL,            -- the operator's definition in terms of others was executed instead
    status     VARCHAR NOT NULL,
    on_target  DOUBLE,                      -- share of the graph's nodes on the target, 0 to 1; NULL: nothing was executed
    max_error  DOUBLE,                      -- NULL: nothing was compared
    error_type VARCHAR,
    message    VARCHAR,
    needs      VARCHAR[],                   -- operators, versions or types that the target lacks
    wall_ms    DOUBLE
);

CREATE TABLE classifications (              -- the run's models as classified by the packages of a target's image
    shard_id     VARCHAR NOT NULL,
    model        VARCHAR NOT NULL,
    architecture VARCHAR,
    model_class  VARCHAR,
    family       VARCHAR,                   -- NULL: no evidence
    subfamily    VARCHAR,
    structure    VARCHAR,
    confidence   DOUBLE NOT NULL,           -- the share of model types for which this kind of evidence was right; 0: none
    evidence     VARCHAR NOT NULL,          -- the kind of evidence
    source       VARCHAR NOT NULL,          -- what was read, in words
    parameters   BIGINT,
    size_tier    VARCHAR
);

CREATE TABLE releases (                     -- release names of runs, in a history
    run_id   VARCHAR PRIMARY KEY,
    release  VARCHAR NOT NULL,
    added_at TIMESTAMP NOT NULL
);

CREATE TABLE rejected (                     -- shards that a merge refused, and why
    run_id      VARCHAR,
    file        VARCHAR NOT NULL,
    reason      VARCHAR NOT NULL,
    rejected_at TIMESTAMP NOT NULL
);
