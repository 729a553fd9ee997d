"""Storage that all machines share."""

from nni.experiment.config import AzureBlobConfig, NfsConfig, SharedStorageConfig

__all__ = ["AzureBlobConfig", "NfsConfig", "SharedStorageConfig"]
