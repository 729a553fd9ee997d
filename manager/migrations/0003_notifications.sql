-- The notifications, one row for each channel. The manager writes a notification in the same commit as its event. The
-- row is settled when the receiver has accepted the notification, or when the manager has given up. If the manager dies
-- before that, the next manager sends the notification again.
CREATE TABLE notification (
    key           INTEGER NOT NULL PRIMARY KEY,
    id            TEXT    NOT NULL, -- the event's id, by which a receiver recognises a repetition
    channel       TEXT    NOT NULL, -- webhook or command
    event         TEXT    NOT NULL, -- JSON, as the manager sends it
    created_at_ms INTEGER NOT NULL,
    tries         INTEGER NOT NULL DEFAULT 0,
    settled_at_ms INTEGER,          -- NULL: not yet delivered or given up
    problem       TEXT,             -- why the manager gave up; NULL: delivered, or not yet settled
    UNIQUE (id, channel)
) STRICT;

CREATE INDEX notification_to_tell ON notification (channel, key) WHERE settled_at_ms IS NULL;
