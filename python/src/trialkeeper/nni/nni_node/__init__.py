"""In the place of NNI's ``nni_node``: its ``node`` is ``trial-manager nni-node``."""

import os

from trialkeeper._programs import find_program

# The program `node` beside this file is a script of the shell, which finds no Python modules.
os.environ["TRIALKEEPER_NNI_MANAGER"] = str(find_program("trial-manager"))
