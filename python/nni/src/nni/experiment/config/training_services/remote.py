"""Trials over SSH."""

from nni.experiment.config import RemoteConfig, RemoteMachineConfig

__all__ = ["RemoteConfig", "RemoteMachineConfig"]
