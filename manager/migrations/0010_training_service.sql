-- The training services that attempts were submitted to, where an experiment has several.
CREATE TABLE attempt_training_service (
    trial    INTEGER NOT NULL REFERENCES trial (key),
    attempt  TEXT    NOT NULL, -- as the manager named it
    part     INTEGER NOT NULL, -- its place in the list, from 0
    platform TEXT    NOT NULL,
    PRIMARY KEY (trial, attempt)
) STRICT, WITHOUT ROWID;
