//! SQLite: the only place with SQL.
