"""Storage of pods."""

from nni.experiment.config import K8sAzureStorageConfig, K8sNfsConfig, K8sStorageConfig

__all__ = ["K8sAzureStorageConfig", "K8sNfsConfig", "K8sStorageConfig"]
