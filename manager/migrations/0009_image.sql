-- The container images that attempts run, with their digests.
CREATE TABLE attempt_image (
    trial   INTEGER NOT NULL REFERENCES trial (key),
    attempt TEXT    NOT NULL, -- as the manager named it
    image   TEXT    NOT NULL,
    PRIMARY KEY (trial, attempt)
) STRICT, WITHOUT ROWID;
