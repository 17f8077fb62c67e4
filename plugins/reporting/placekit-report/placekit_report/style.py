"""How pictures look: colours that people with any colour vision tell apart, and what tells things apart without colours."""

from __future__ import annotations

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d31", "#7a5195", "#f0e442")
"""The palette of Okabe and Ito (2008), *Color Universal Design*, without black, with a brown and a violet before its yellow."""
GREY = "#8c959f"
"""What has no colour of its own: all other types and modules."""
DARK_FILLS = (COLOURS[0], COLOURS[6], COLOURS[7])
"""Colours on which text is white; it is black on all others."""


def on(colour: str) -> str:
    """Colour of text on a fill of this colour."""
    return "#ffffff" if colour in DARK_FILLS else "#111111"
