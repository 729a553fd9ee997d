-- The problem of an external tuner or assessor, as a message for users. NULL: no known problem.
ALTER TABLE experiment ADD COLUMN trouble TEXT;
