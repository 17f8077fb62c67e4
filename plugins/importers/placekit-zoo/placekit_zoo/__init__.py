"""The networks of the device placement literature, one importer each. Importing this module imports no torch."""

from __future__ import annotations

from placekit_core import ImporterComponent, hookimpl
from placekit_zoo import dense_options, family_options, image_options, recurrent_options, towers_options


@hookimpl
def placekit_importers() -> list[ImporterComponent]:
    """One importer per network or family."""
    parts = (image_options, recurrent_options, dense_options, family_options, towers_options)
    return [component for part in parts for component in part.COMPONENTS]
