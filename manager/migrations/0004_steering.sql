-- Imported results, and the number of each trial's retries. Both must survive the manager.

-- Results that a user imported, in the order of their import.
CREATE TABLE imported (
    key        INTEGER NOT NULL PRIMARY KEY,
    parameters TEXT    NOT NULL, -- JSON
    value      TEXT    NOT NULL, -- JSON
    at_ms      INTEGER NOT NULL
) STRICT;

-- The number of the trial's retries after transient failures.
ALTER TABLE trial ADD COLUMN retries INTEGER NOT NULL DEFAULT 0;
