-- The first schema. Files here are only ever added: a stored database names the last one it has seen in
-- its `user_version`. Times are milliseconds since the Unix epoch.

-- One row: a database belongs to one experiment.
CREATE TABLE experiment (
    id            TEXT    NOT NULL PRIMARY KEY,
    canonical     TEXT    NOT NULL, -- the checked experiment file, JSON
    seed          INTEGER NOT NULL, -- 64 bits, read as unsigned
    state         TEXT    NOT NULL,
    created_at_ms INTEGER NOT NULL,
    ended_at_ms   INTEGER,          -- NULL while it goes on
    elapsed_ms    INTEGER NOT NULL  -- time spent running, interruptions left out
) STRICT;

CREATE TABLE trial (
    key           INTEGER NOT NULL PRIMARY KEY,
    id            TEXT    NOT NULL UNIQUE,
    sequence      INTEGER NOT NULL,
    parameter_id  INTEGER,
    parameters    TEXT    NOT NULL, -- JSON
    attempt       TEXT    NOT NULL, -- the current one, as the manager named it
    state         TEXT    NOT NULL,
    intent        TEXT,             -- why we mean to stop it; NULL: we do not
    created_at_ms INTEGER NOT NULL,
    started_at_ms INTEGER,
    ended_at_ms   INTEGER,
    message       TEXT,
    exit_code     INTEGER
) STRICT;

-- What happened to a trial, in order; never changed.
CREATE TABLE trial_event (
    key       INTEGER NOT NULL PRIMARY KEY,
    trial     INTEGER NOT NULL REFERENCES trial (key),
    at_ms     INTEGER NOT NULL,
    state     TEXT    NOT NULL,
    attempt   TEXT    NOT NULL,
    intent    TEXT,
    message   TEXT,
    exit_code INTEGER
) STRICT;

CREATE INDEX trial_event_of_trial ON trial_event (trial, key);

-- An incarnation of a trial that was heard of; `key` rises in the order of first arrival.
CREATE TABLE attempt (
    key           INTEGER NOT NULL PRIMARY KEY,
    trial         INTEGER NOT NULL REFERENCES trial (key),
    name          TEXT    NOT NULL,
    last_heard_ms INTEGER NOT NULL,
    facts_through INTEGER, -- highest stored seq of the facts lane; NULL: none
    bulk_through  INTEGER, -- likewise of the bulk lane
    ended         INTEGER NOT NULL DEFAULT 0, -- 1: its `ended` report is stored
    UNIQUE (trial, name)
) STRICT;

-- Every report except pieces of log. The key is the report's name for ever, which is what makes a second
-- delivery harmless. `body` is the JSON as it arrived, so that nothing a newer agent says is lost.
CREATE TABLE report (
    attempt        INTEGER NOT NULL REFERENCES attempt (key),
    lane           INTEGER NOT NULL, -- 0 facts, 1 bulk
    seq            INTEGER NOT NULL,
    observed_at_ms INTEGER NOT NULL, -- by the agent's clock
    stored_at_ms   INTEGER NOT NULL, -- by the manager's clock
    kind           TEXT    NOT NULL,
    body           TEXT    NOT NULL,
    PRIMARY KEY (attempt, lane, seq)
) STRICT, WITHOUT ROWID;

-- Pieces of the trial's output, decoded. Rows are large, hence a rowid and a separate index.
CREATE TABLE log_chunk (
    key            INTEGER NOT NULL PRIMARY KEY,
    trial          INTEGER NOT NULL REFERENCES trial (key),
    attempt        INTEGER NOT NULL REFERENCES attempt (key),
    seq            INTEGER NOT NULL, -- on the bulk lane
    stream         TEXT    NOT NULL, -- stdout or stderr
    offset_bytes   INTEGER NOT NULL, -- of the first byte within the attempt's stream
    observed_at_ms INTEGER NOT NULL,
    bytes          BLOB    NOT NULL,
    UNIQUE (attempt, seq)
) STRICT;

-- One row that is counted up to see whether the database can be written.
CREATE TABLE probe (
    key    INTEGER NOT NULL PRIMARY KEY CHECK (key = 1),
    writes INTEGER NOT NULL
) STRICT;
