-- The cache of classifications (hwmatrix/classifications/1): one row per answer. Everything in it can be computed again.
CREATE TABLE meta (
    key   VARCHAR PRIMARY KEY,
    value VARCHAR NOT NULL
);

CREATE TABLE classifications (
    question      VARCHAR PRIMARY KEY,      -- sha256 of all inputs, and of the versions that could change the answer
    model_name    VARCHAR NOT NULL,
    architecture  VARCHAR,
    model_class   VARCHAR,
    tasks         VARCHAR[] NOT NULL,
    methods       VARCHAR[] NOT NULL,
    family        VARCHAR,                  -- NULL: not known
    subfamily     VARCHAR,
    confidence    DOUBLE NOT NULL,
    versions      JSON NOT NULL,            -- of hwmatrix and transformers
    record        JSON NOT NULL,            -- the whole answer
    classified_at TIMESTAMP NOT NULL
);
