"""The page `report.html`: one file that needs no network and reads as tables without scripts."""

from placekit_report.page.page import render as render
