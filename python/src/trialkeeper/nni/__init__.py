"""Replaces the Node server of NNI's own package (``pip install nni==3.0``) with ``trial-manager``.

Scripts and ``nnictl`` need no change. There are three ways to use it:

* ``python -m trialkeeper.nni install``: for this environment, until ``uninstall``;
* ``python -m trialkeeper.nni script.py`` or ``python -m trialkeeper.nni nnictl create …``: for one command;
* ``import trialkeeper.nni`` in the first line of a script.
"""

import sys

#: The modules of NNI that this package replaces or patches.
MODULES = frozenset({"nni_node", "nni.experiment.config"})


class _Finder:
    """Replaces or patches two modules of NNI when they are imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Returns the module's specification; None for all other modules."""
        if name not in MODULES:
            return None
        from trialkeeper.nni import _hook

        return _hook.find_spec(name, path)


if not any(getattr(finder, "__name__", "") == _Finder.__name__ for finder in sys.meta_path):
    # Inserted first, because NNI's package has its own module nni_node.
    sys.meta_path.insert(0, _Finder)
