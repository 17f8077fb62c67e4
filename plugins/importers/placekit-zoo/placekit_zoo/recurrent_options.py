"""The recurrent networks: options and components; imports no torch."""

from __future__ import annotations

from placekit_core.hookspecs import Component

COMPONENTS: list[Component] = []
