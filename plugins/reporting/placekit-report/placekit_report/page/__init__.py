"""The page `report.html`: one file without network, readable without scripts. `render` makes it from the data of a report."""

from placekit_report.page.page import pairs as pairs, render as render
