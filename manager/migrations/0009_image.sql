-- The container images that attempts run, with their digests.
CREATE TABLE attempt_image (
    trial   INTEGER NOT NULL REFERENCES trial (key),
    attempt TEXT    NOT NULL, -- the name that the manager assigned
    image   TEXT    NOT NULL,
    PRIMARY KEY (trial, attempt)
) STRICT, WITHOUT ROWID;
