"""`python -m placekit_core` is `placekit`."""

import sys

from placekit_core.cli.main import script

sys.exit(script())
