-- What is wrong with a tuner or an assessor outside the manager, as a person is told. NULL: nothing is known to be.
ALTER TABLE experiment ADD COLUMN trouble TEXT;
