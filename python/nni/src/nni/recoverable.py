"""The base class of tuners and assessors: their checkpoints, and the trials of a resumed experiment."""

from __future__ import annotations

import json
import os
from typing import Any, Optional, Union

__all__ = ["Recoverable"]


class Recoverable:
    """An algorithm that can continue after a restart."""

    #: The largest id of a recovered proposal; -1 if none was recovered. Subclasses need not call ``__init__``.
    recovered_max_param_id: int = -1

    def __init__(self) -> None:
        #: The parameters of recovered proposals by their ids.
        self.recovered_trial_params: dict[int, Any] = {}

    def load_checkpoint(self) -> None:
        """Loads the state that :meth:`save_checkpoint` saved."""

    def save_checkpoint(self) -> None:
        """Saves the state in the folder :meth:`get_checkpoint_path`."""

    def get_checkpoint_path(self) -> Optional[str]:
        """Returns the folder for the algorithm's own files; ``None`` if there is none, as outside a search."""
        folder = os.environ.get("NNI_CHECKPOINT_DIRECTORY")
        return folder if folder and os.path.isdir(folder) else None

    def recover_parameter_id(self, data: Union[Any, list[Any]]) -> int:
        """Stores earlier proposals, which are records or their JSON. Returns the largest id, at least 0."""
        records = data if isinstance(data, list) else [data]
        known = self.__dict__.setdefault("recovered_trial_params", {})
        for record in records:
            if isinstance(record, str):
                record = json.loads(record)
            # The id of a trial that the user added is not a number.
            if isinstance(record["parameter_id"], int):
                known[record["parameter_id"]] = record["parameters"]
        self.recovered_max_param_id = max(known, default=0)
        return self.recovered_max_param_id

    def is_created_in_previous_exp(self, param_id: Optional[int]) -> bool:
        """Returns whether a proposal is from before the restart."""
        return param_id is not None and param_id <= self.recovered_max_param_id

    def get_previous_param(self, param_id: int) -> dict[str, Any]:
        """Returns the parameters of a recovered proposal.

        :raises KeyError: if there is none with this id.
        """
        found: dict[str, Any] = self.__dict__.get("recovered_trial_params", {})[param_id]
        return found
