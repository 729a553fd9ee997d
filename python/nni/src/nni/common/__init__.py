"""NNI's serializer, and the helpers of custom tuners."""

from nni.common.serializer import dump, is_traceable, load, trace

__all__ = ["dump", "is_traceable", "load", "trace"]
