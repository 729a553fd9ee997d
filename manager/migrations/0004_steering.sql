-- What a person gives a search that runs, and what a manager must not forget of it.

-- Results from elsewhere, in the order of their import.
CREATE TABLE imported (
    key        INTEGER NOT NULL PRIMARY KEY,
    parameters TEXT    NOT NULL, -- JSON
    value      TEXT    NOT NULL, -- JSON
    at_ms      INTEGER NOT NULL
) STRICT;

-- How often the trial was tried again after a failure that may pass.
ALTER TABLE trial ADD COLUMN retries INTEGER NOT NULL DEFAULT 0;
