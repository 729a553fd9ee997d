"""``python -m trialkeeper`` runs the ``trial-manager`` of the same installation."""

import os
import sys

from trialkeeper._programs import find_program
from trialkeeper.errors import ManagerError


def main() -> None:
    """Replaces this process by ``trial-manager``, with the same arguments."""
    try:
        program = find_program("trial-manager")
    except ManagerError as error:
        sys.exit(f"trialkeeper: {error}")
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
