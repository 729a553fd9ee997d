//! HTTP: the routes as a table, one line each.
