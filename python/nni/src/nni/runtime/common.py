"""The variables of a trial that asks several times for parameters, which no experiment of TrialKeeper has."""

__all__ = ["multi_phase_enabled"]


def multi_phase_enabled() -> bool:
    """Returns ``False``."""
    return False
