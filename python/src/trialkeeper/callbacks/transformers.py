"""Reports the evaluations of Hugging Face's ``Trainer``."""

from __future__ import annotations

from typing import Any, Optional

from transformers import TrainerCallback

from trialkeeper import trial

__all__ = ["Report"]


class Report(TrainerCallback):  # type: ignore[misc]
    """Reports each evaluation, or the training's logs if there are no evaluations."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trial.should_stop()

    def on_evaluate(
        self,
        args: Any,
        state: Any,
        control: Any,
        metrics: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero:
            trial.report(_numbers(metrics), step=state.global_step)

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Optional[dict[str, Any]] = None,
        **kwargs: Any,
    ) -> None:
        evaluated = any(name.startswith("eval_") for name in logs or {})
        if state.is_world_process_zero and not evaluated:
            trial.report(_numbers(logs), step=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if trial.should_stop():
            control.should_training_stop = True


def _numbers(logs: Optional[dict[str, Any]]) -> dict[str, float]:
    return {name: value for name, value in (logs or {}).items() if isinstance(value, (int, float))}
