"""Two modules of NNI: TrialKeeper's replacement of ``nni_node``, and the patched ``nni.experiment.config``."""

from __future__ import annotations

import copy
import difflib
import importlib.machinery
import importlib.util
import logging
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

NODE = Path(__file__).parent / "nni_node"


def find_spec(name: str, path: Optional[Sequence[str]]) -> Optional[importlib.machinery.ModuleSpec]:
    """Returns the specification of one of the two modules; None if NNI is not installed."""
    if name == "nni_node":
        return importlib.util.spec_from_file_location(
            name, NODE / "__init__.py", submodule_search_locations=[str(NODE)]
        )
    spec = importlib.machinery.PathFinder.find_spec(name, path)
    if spec is not None and spec.loader is not None:
        spec.loader = _PatchingLoader(spec.loader)  # type: ignore[assignment]
    return spec


class _PatchingLoader:
    """Loads the module with its own loader, then patches it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        patch(module)


def patch(config: types.ModuleType) -> None:
    """Makes NNI's configuration classes accept the examples of NNI's documentation, which nni 3.0 rejects.

    * Names of attributes ignore case and underscores, as keywords do (``gpuNumber``).
    * A FrameworkController needs no ``service_account_name``.
    * Storage classes set ``storage_type`` by their name.
    """
    services = getattr(config, "training_services", None)
    if services is None:
        # The module of `trialkeeper-nni` needs no patch.
        return
    _ignore_case_of_attributes(config.base.ConfigBase)
    _set_default(services.FrameworkControllerConfig, "service_account_name", None)
    for name, kind in (("K8sNfsConfig", "nfs"), ("K8sAzureStorageConfig", "azureStorage")):
        _set_default(getattr(services, name), "storage_type", kind)


def _ignore_case_of_attributes(base: Any) -> None:
    original = base.__setattr__
    noted: set[tuple[str, str]] = set()

    def set_attribute(self: Any, name: str, value: Any) -> None:
        fields = type(self).__dataclass_fields__
        if name.startswith("_") or name in fields or hasattr(self, name):
            original(self, name, value)
            return
        cls, simple = type(self).__name__, {_simplify(field): field for field in fields}
        field = simple.get(_simplify(name))
        if field is None:
            close = difflib.get_close_matches(_simplify(name), simple, n=1, cutoff=0.6)
            advice = f"; did you mean {simple[close[0]]}?" if close else ""
            raise AttributeError(f"{cls} does not have field {name}{advice}")
        if (cls, name) not in noted:
            noted.add((cls, name))
            note = "%s: `%s` is taken as `%s`; NNI 3.0 refuses this spelling"
            logging.getLogger("nni.experiment.config").warning(note, cls, name, field)
        original(self, field, value)

    base.__setattr__ = set_attribute


def _simplify(name: str) -> str:
    return name.lower().replace("_", "")


def _set_default(cls: Any, name: str, default: Any) -> None:
    fields = dict(cls.__dataclass_fields__)
    if name not in fields:
        return
    # A class shares the objects of its base class.
    field = copy.copy(fields[name])
    field.default = default
    fields[name] = field
    cls.__dataclass_fields__ = fields
