-- The sessions of browsers, each from its login until its end. The digest is computed from the session's id and the
-- user's token. Neither can be computed from the digest, and a new token ends all earlier sessions.
CREATE TABLE session (
    digest        TEXT    NOT NULL PRIMARY KEY,
    expires_at_ms INTEGER NOT NULL
) STRICT;
