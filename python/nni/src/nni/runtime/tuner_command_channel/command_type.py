"""The types of messages between the manager and a tuner, an assessor or an advisor."""

from enum import Enum

__all__ = ["CommandType"]


class CommandType(Enum):
    """The type of a message. Its value is the type on the wire."""

    # From the manager.
    Initialize = "IN"
    RequestTrialJobs = "GE"
    ReportMetricData = "ME"
    UpdateSearchSpace = "SS"
    ImportData = "FD"
    AddCustomizedTrialJob = "AD"
    TrialEnd = "EN"
    Terminate = "TE"
    Ping = "PI"

    # To the manager.
    Initialized = "ID"
    NewTrialJob = "TR"
    SendTrialJobParameter = "SP"
    NoMoreTrialJobs = "NO"
    KillTrialJob = "KI"
    Error = "ER"
