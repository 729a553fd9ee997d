-- The states of the code directory that attempts were started in.
CREATE TABLE code_version (
    key      INTEGER NOT NULL PRIMARY KEY,
    sha256   TEXT    NOT NULL UNIQUE, -- lower-case hexadecimal digits
    document TEXT    NOT NULL         -- `code_archive::version::CodeVersion`, JSON
) STRICT;

CREATE TABLE attempt_code (
    trial   INTEGER NOT NULL REFERENCES trial (key),
    attempt TEXT    NOT NULL, -- as the manager named it
    code    INTEGER NOT NULL REFERENCES code_version (key),
    PRIMARY KEY (trial, attempt)
) STRICT, WITHOUT ROWID;
