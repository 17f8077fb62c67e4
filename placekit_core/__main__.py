"""`python -m placekit_core` is `placekit`."""

import sys

from placekit_core.cli import main

sys.exit(main())
