-- The cache of classifications (hwmatrix/classifications/1): one row an answer. Everything in it can be computed again.
CREATE TABLE meta (
    key   VARCHAR PRIMARY KEY,
    value VARCHAR NOT NULL
);

CREATE TABLE classifications (
    question      VARCHAR PRIMARY KEY,      -- sha256 of everything that was asked, and of what could change the answer
    model_name    VARCHAR NOT NULL,
    architecture  VARCHAR,
    model_class   VARCHAR,
    tasks         VARCHAR[] NOT NULL,
    methods       VARCHAR[] NOT NULL,
    family        VARCHAR,                  -- NULL: nothing says it
    subfamily     VARCHAR,
    confidence    DOUBLE NOT NULL,
    versions      JSON NOT NULL,            -- of what answered
    record        JSON NOT NULL,            -- the whole answer
    classified_at TIMESTAMP NOT NULL
);
