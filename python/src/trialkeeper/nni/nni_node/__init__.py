"""Replaces NNI's ``nni_node``. Its ``node`` is ``trial-manager nni-node``."""

import os

from trialkeeper._programs import find_program

# The program `node` beside this file is a shell script, which cannot find Python modules.
os.environ["TRIALKEEPER_NNI_MANAGER"] = str(find_program("trial-manager"))
