-- The sessions of browsers, each from its log-in until its end. The digest is made from the session's id and the user's
-- token: neither can be told from it, and none is found once the token was replaced.
CREATE TABLE session (
    digest        TEXT    NOT NULL PRIMARY KEY,
    expires_at_ms INTEGER NOT NULL
) STRICT;
