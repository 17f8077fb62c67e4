"""placekit: which device runs which operation. The core: contracts, data flow, command line.

Importing this package imports neither torch nor numba nor hydra.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("placekit")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
