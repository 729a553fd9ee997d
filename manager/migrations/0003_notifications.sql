-- What is to be told to others, a row for each way of telling. It is written together with what it tells of, and
-- settled once it was told or given up: a manager that dies in between makes it told again, never forgotten.
CREATE TABLE notification (
    key           INTEGER NOT NULL PRIMARY KEY,
    id            TEXT    NOT NULL, -- the event's; by it a receiver knows one that it has had
    channel       TEXT    NOT NULL, -- webhook or command
    event         TEXT    NOT NULL, -- JSON, as it is told
    created_at_ms INTEGER NOT NULL,
    tries         INTEGER NOT NULL DEFAULT 0,
    settled_at_ms INTEGER,          -- NULL: still to be told
    problem       TEXT,             -- why it was given up; NULL: it was told, or is still to be
    UNIQUE (id, channel)
) STRICT;

CREATE INDEX notification_to_tell ON notification (channel, key) WHERE settled_at_ms IS NULL;
