"""Trials on Kubeflow."""

from nni.experiment.config import KubeflowConfig, KubeflowRoleConfig

__all__ = ["KubeflowConfig", "KubeflowRoleConfig"]
