"""``python -m nni`` is the process in which the manager runs a tuner and an assessor of the user's own."""

import sys

from nni._dispatcher import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
