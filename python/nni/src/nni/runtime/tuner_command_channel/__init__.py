"""The connection of an advisor to the manager, and the types of messages."""

from nni.runtime.tuner_command_channel.channel import TunerCommandChannel
from nni.runtime.tuner_command_channel.command_type import CommandType

__all__ = ["CommandType", "TunerCommandChannel"]
