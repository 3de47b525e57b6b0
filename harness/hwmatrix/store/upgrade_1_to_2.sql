-- Upgrades a merged database from schema 1 to 2: the tables classifications and releases are new.
CREATE TABLE classifications (
    shard_id     VARCHAR NOT NULL,
    model        VARCHAR NOT NULL,
    architecture VARCHAR,
    model_class  VARCHAR,
    family       VARCHAR,
    subfamily    VARCHAR,
    structure    VARCHAR,
    confidence   DOUBLE NOT NULL,
    evidence     VARCHAR NOT NULL,
    source       VARCHAR NOT NULL,
    parameters   BIGINT,
    size_tier    VARCHAR
);
CREATE TABLE releases (
    run_id   VARCHAR PRIMARY KEY,
    release  VARCHAR NOT NULL,
    added_at TIMESTAMP NOT NULL
);
