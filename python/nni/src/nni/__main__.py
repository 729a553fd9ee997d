"""``python -m nni`` is the process in which the manager runs custom tuners and assessors."""

import sys

from nni._dispatcher import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
