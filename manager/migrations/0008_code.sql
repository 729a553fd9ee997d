-- The versions of the code directory. An attempt runs one of them.
CREATE TABLE code_version (
    key      INTEGER NOT NULL PRIMARY KEY,
    sha256   TEXT    NOT NULL UNIQUE, -- lower-case hexadecimal digits
    document TEXT    NOT NULL         -- `code_archive::version::CodeVersion`, JSON
) STRICT;

CREATE TABLE attempt_code (
    trial   INTEGER NOT NULL REFERENCES trial (key),
    attempt TEXT    NOT NULL, -- the name that the manager assigned
    code    INTEGER NOT NULL REFERENCES code_version (key),
    PRIMARY KEY (trial, attempt)
) STRICT, WITHOUT ROWID;
