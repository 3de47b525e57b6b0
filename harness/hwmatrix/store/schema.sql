-- The tables of a shard and of a merged database. Reports read the views of views.sql, never these directly.
-- The line MEASURED stands for the fields of records.Measured, which documents them (cell_columns.py inserts them).
-- Types in CamelCase are domains (domains.py): the words of a closed list, or a range. A merged database refuses other values.
-- Times end in _ms (wall clock) or _ns, memory in _mb (MiB). NULL means: not measured.

CREATE TABLE meta (
    key   VARCHAR PRIMARY KEY,
    value VARCHAR NOT NULL
);

CREATE TABLE runs (
    run_id           VARCHAR PRIMARY KEY,
    created_at       Time NOT NULL,
    command          VARCHAR NOT NULL,
    hwmatrix_version VARCHAR NOT NULL,
    matrix_sha256    VARCHAR NOT NULL,
    commit_id        VARCHAR,
    isolation        Isolation NOT NULL,
    plan             JSON NOT NULL -- the whole plan, as the runner received it
);

CREATE TABLE planned (                      -- the cells of a run's plan; those without a row in cells are not_run
    run_id          VARCHAR NOT NULL,
    cell_key        VARCHAR NOT NULL,
    model           VARCHAR NOT NULL,
    size            Size NOT NULL,
    target          VARCHAR NOT NULL,
    family          Family NOT NULL,
    architecture    VARCHAR NOT NULL,
    hub_id          VARCHAR,
    dtype           Dtype NOT NULL,
    batch           Count NOT NULL,
    sequence_length Count NOT NULL,
    threads         Count NOT NULL,
    new_tokens      Count DEFAULT 0,        -- generated after the prompt; 0: one forward pass
    execution       Execution NOT NULL,
    backend         VARCHAR NOT NULL,
    isolation       Isolation,              -- of this target; NULL: the run's
    position        Count NOT NULL,         -- the order of matrix.yaml
    unavailable     VARCHAR,                -- why the target cannot run here
    unbuildable     VARCHAR,                -- why the model cannot be built
    matrix_line     INTEGER
);

CREATE TABLE shards (
    shard_id       VARCHAR PRIMARY KEY,
    run_id         VARCHAR NOT NULL,
    target         VARCHAR NOT NULL,
    isolation      Isolation NOT NULL,
    image          VARCHAR,          -- the image's tag; NULL outside a container
    image_digest   VARCHAR,          -- sha256 of the image; of the requirements for a virtual environment
    started_at     Time NOT NULL,
    finished_at    Time,             -- NULL: the run was interrupted
    host           VARCHAR NOT NULL, -- a hash of the machine's identity, so that machines are not mixed
    interpreter    VARCHAR NOT NULL,
    versions       Versions NOT NULL, -- the versions of the packages that matter for this target
    packages       Versions NOT NULL, -- the versions of all installed packages
    canary_ok      BOOLEAN,          -- NULL: interrupted before they ended, or nothing ran on the target
    canary_detail  VARCHAR,
    warm_up_ms     Amount,           -- import of the frameworks, once per shard
    sha256         VARCHAR           -- of the shard's file; filled by the merge
);

CREATE TABLE detections (
    shard_id      VARCHAR NOT NULL,
    hardware_type VARCHAR NOT NULL,
    available     BOOLEAN NOT NULL,
    name          VARCHAR,
    features      Facts NOT NULL,
    reason        VARCHAR,
    detected_at   Time NOT NULL
);

CREATE TABLE cells (
    cell_id          VARCHAR PRIMARY KEY,
    shard_id         VARCHAR NOT NULL,
    run_id           VARCHAR NOT NULL,
    cell_key         VARCHAR NOT NULL,
    role             Role NOT NULL,                            -- model, adapted, canary_good, canary_wrong
    model            VARCHAR NOT NULL,
    size             Size NOT NULL,
    target           VARCHAR NOT NULL,
    family           Family NOT NULL,
    architecture     VARCHAR NOT NULL,
    hub_id           VARCHAR,
    dtype            Dtype NOT NULL,
    batch            Count NOT NULL,
    sequence_length  Count NOT NULL,
    threads          Count NOT NULL,
    new_tokens       Count DEFAULT 0,
    status           Status NOT NULL,
    stage            Stage NOT NULL,                           -- the last stage that was entered
    execution        Execution NOT NULL,
    -- MEASURED
    error_type       VARCHAR,
    severity         Severity,
    message          VARCHAR USING COMPRESSION 'zstd',
    traceback        VARCHAR USING COMPRESSION 'zstd',
    needs            Texts,                                    -- operators or features that the target lacks
    exit_code        INTEGER,
    signal           INTEGER,
    adapted_from     VARCHAR,                                  -- for an adapted cell: the key of the failed cell
    adaptation       Facts,                                    -- the settings that were changed: {"batch": 4}
    started_at       Time NOT NULL,
    wall_ms          Amount NOT NULL,                          -- of the whole cell, from the fork to the end
    command          VARCHAR NOT NULL USING COMPRESSION 'zstd' -- repeats this cell alone
);

CREATE TABLE stages (
    cell_id VARCHAR NOT NULL,
    stage   Stage NOT NULL,
    wall_ms Amount NOT NULL
);

CREATE TABLE outputs (
    cell_id        VARCHAR NOT NULL,
    name           VARCHAR NOT NULL,
    shape          Counts NOT NULL,
    dtype          VARCHAR NOT NULL,
    relative_error Amount,
    max_error      Amount,
    cosine         Number,
    top1           Share
);

CREATE TABLE samples (                      -- no key: it would make the file four to six times larger
    cell_id VARCHAR NOT NULL,
    n       Count NOT NULL,
    wall_ns LargeCount NOT NULL,
    cpu_ns  LargeCount                      -- NULL: measured by the device's own clock
);

CREATE TABLE timings (                      -- statistics of cells whose samples were left out of a published database
    cell_id      VARCHAR NOT NULL,
    samples      Count NOT NULL,            -- their number; the next columns are those of the view latency
    p50_ms       Amount NOT NULL,
    p90_ms       Amount NOT NULL,
    p99_ms       Amount NOT NULL,
    mean_ms      Amount NOT NULL,
    min_ms       Amount NOT NULL,
    max_ms       Amount NOT NULL,
    ci_low_ms    Amount,
    ci_high_ms   Amount,
    cpu_p50_ms   Amount,
    p25_ms       Amount NOT NULL,           -- the lower quartile; the next column is the noise (view noises)
    noise_ms     Amount,
    quantiles_ms Amounts NOT NULL           -- the quantiles 0, 0.05, ..., 1
);

CREATE TABLE operators (                    -- the ONNX standard's tests of single operators, executed by a target
    shard_id   VARCHAR NOT NULL,
    target     VARCHAR NOT NULL,
    test       VARCHAR NOT NULL,
    operator   VARCHAR NOT NULL,
    domain     VARCHAR NOT NULL,            -- empty: the ONNX standard's own
    opset      Count NOT NULL,              -- the version of the domain's operators
    expanded   BOOLEAN NOT NULL,            -- the operator's definition in terms of others was executed instead
    status     Status NOT NULL,
    on_target  Share,                       -- share of the graph's nodes on the target, 0 to 1; NULL: nothing was executed
    max_error  Amount,                      -- NULL: nothing was compared
    error_type VARCHAR,
    message    VARCHAR,
    needs      Texts,                       -- operators, versions or types that the target lacks
    wall_ms    Amount
);

CREATE TABLE classifications (              -- the run's models as classified by the packages of a target's image
    shard_id     VARCHAR NOT NULL,
    model        VARCHAR NOT NULL,
    architecture VARCHAR,
    model_class  VARCHAR,
    family       Family,                    -- NULL: no evidence
    subfamily    VARCHAR,
    structure    VARCHAR,
    confidence   Share NOT NULL,            -- the share of model types for which this kind of evidence was right; 0: none
    evidence     VARCHAR NOT NULL,          -- the kind of evidence
    source       VARCHAR NOT NULL,          -- what was read, in words
    parameters   LargeCount,
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
