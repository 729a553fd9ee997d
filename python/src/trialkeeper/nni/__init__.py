"""Puts ``trial-manager`` in the place of the Node server of NNI's own package (``pip install nni==3.0``).

Scripts and ``nnictl`` stay as they are. One of these is enough:

* ``python -m trialkeeper.nni install``: from then on, in this environment, until ``uninstall``;
* ``python -m trialkeeper.nni script.py`` or ``python -m trialkeeper.nni nnictl create …``: for one command;
* ``import trialkeeper.nni`` as a script's first line.
"""

import sys

#: The modules of NNI's that are replaced or mended.
MODULES = frozenset({"nni_node", "nni.experiment.config"})


class _Finder:
    """Finds the two modules of NNI's that are replaced or mended, once they are imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Returns the module's specification; None for all other modules."""
        if name not in MODULES:
            return None
        from trialkeeper.nni import _hook

        return _hook.find_spec(name, path)


if not any(getattr(finder, "__name__", "") == _Finder.__name__ for finder in sys.meta_path):
    # First: NNI's package has a module nni_node of its own.
    sys.meta_path.insert(0, _Finder)
