"""NNI's modules for the environment, the logs and the folder of settings."""
