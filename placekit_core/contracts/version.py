"""The version of placekit-core."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("placekit-core")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"
