"""Reports the metrics of each validation of PyTorch Lightning."""

from __future__ import annotations

from typing import Any

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

from trialkeeper import trial

__all__ = ["Report"]


class Report(pl.Callback):  # type: ignore[misc]
    """Reports ``trainer.callback_metrics`` after each validation, and after each epoch without validation."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trial.should_stop()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._report(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.enable_validation:
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        # Of several processes, only the first one reports.
        if trainer.is_global_zero:
            trial.report(dict(trainer.callback_metrics), step=trainer.current_epoch)
        if trial.should_stop():
            trainer.should_stop = True
