-- The training service of each attempt, in experiments with several training services.
CREATE TABLE attempt_training_service (
    trial    INTEGER NOT NULL REFERENCES trial (key),
    attempt  TEXT    NOT NULL, -- the name that the manager assigned
    part     INTEGER NOT NULL, -- the service's index in `trainingService`, from 0
    platform TEXT    NOT NULL,
    PRIMARY KEY (trial, attempt)
) STRICT, WITHOUT ROWID;
