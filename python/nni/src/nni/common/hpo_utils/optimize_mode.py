"""The direction of a search."""

from nni.utils import OptimizeMode

__all__ = ["OptimizeMode"]
