"""Reports the metrics of each epoch of a Keras model."""

from __future__ import annotations

from typing import Any, Optional

import keras

from trialkeeper import trial

__all__ = ["Report"]


class Report(keras.callbacks.Callback):  # type: ignore[misc]
    """Reports Keras's logs at the end of each epoch, and ends the training when the trial should stop."""

    def on_train_begin(self, logs: Optional[dict[str, Any]] = None) -> None:
        trial.should_stop()

    def on_epoch_end(self, epoch: int, logs: Optional[dict[str, Any]] = None) -> None:
        trial.report(dict(logs or {}), step=epoch)
        if trial.should_stop():
            self.model.stop_training = True
