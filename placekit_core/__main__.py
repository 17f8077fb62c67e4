"""`python -m placekit_core` is `placekit`."""

import sys

from placekit_core.cli.main import main

sys.exit(main())
