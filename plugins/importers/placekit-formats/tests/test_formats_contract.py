"""The importers keep the contract of importers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from placekit_formats.doppler import DopplerImporter
from placekit_formats.json_program import JsonImporter
from placekit_formats.msr import MsrImporter
from placekit_formats.pipedream import PipeDreamImporter
from placekit_formats.profile import ProfileImporter
from placekit_testing import ImporterContract
from placekit_testing.contract import Make

SAMPLES = Path(__file__).with_name("samples")


class TestJson(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(JsonImporter, path=str(SAMPLES / "pair.json"))


class TestDoppler(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(DopplerImporter, path=str(SAMPLES / "triangle.txt"))


class TestMsr(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(MsrImporter, path=str(SAMPLES / "training.json"))


class TestProfile(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(ProfileImporter, path=str(SAMPLES / "profile.csv"))


class TestPipeDream(ImporterContract):
    @pytest.fixture
    def make(self) -> Make:
        return partial(PipeDreamImporter, path=str(SAMPLES / "tower.txt"))
