"""The variables that a trial, and the process of a tuner, receive. They are read once, at the import."""

from __future__ import annotations

import os
from typing import NamedTuple, Optional

__all__ = ["dispatcher_env_vars", "trial_env_vars"]


class _TrialVariables(NamedTuple):
    NNI_PLATFORM: Optional[str]
    NNI_EXP_ID: Optional[str]
    NNI_TRIAL_JOB_ID: Optional[str]
    NNI_SYS_DIR: Optional[str]
    NNI_OUTPUT_DIR: Optional[str]
    NNI_TRIAL_COMMAND_CHANNEL: Optional[str]
    NNI_TRIAL_SEQ_ID: Optional[str]
    MULTI_PHASE: Optional[str]
    REUSE_MODE: Optional[str]


class _DispatcherVariables(NamedTuple):
    SDK_PROCESS: Optional[str]
    NNI_MODE: Optional[str]
    NNI_CHECKPOINT_DIRECTORY: Optional[str]
    NNI_LOG_DIRECTORY: Optional[str]
    NNI_LOG_LEVEL: Optional[str]
    NNI_INCLUDE_INTERMEDIATE_RESULTS: Optional[str]
    NNI_TUNER_COMMAND_CHANNEL: Optional[str]


#: The variables of a trial; ``None`` for those that are not set.
trial_env_vars = _TrialVariables(*map(os.environ.get, _TrialVariables._fields))
#: The variables of the process of a tuner; ``None`` for those that are not set.
dispatcher_env_vars = _DispatcherVariables(*map(os.environ.get, _DispatcherVariables._fields))
