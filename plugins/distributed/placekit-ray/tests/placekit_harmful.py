"""A plugin for tests: backend `harmful`, on which some evaluations hang.

And policy `fake_learnable`, which imports no large library, so that processes start quickly.
"""

from __future__ import annotations

import time

from placekit_testing.fakes import FakeBackend, FakeLearnable, FakeOptions, FakeSession
from pydantic import Field

from placekit_core import Component, Executable, Measurements, Placements, PolicyComponent, Problem, hookimpl


class HarmfulOptions(FakeOptions):
    """Options of backend `harmful`."""

    hangs: bool = Field(False, description="evaluations of placements with the last group on device 1 never end")


class Harmful(FakeBackend):
    """The fake backend, which may be called from many processes."""

    name = "harmful"
    options_class = HarmfulOptions
    parallel = True

    def open(self, problem: Problem, executable: Executable | None = None) -> FakeSession:
        return HarmfulSession(problem, self.options.hangs)


class HarmfulSession(FakeSession):
    """See `HarmfulOptions`."""

    def __init__(self, problem: Problem, hangs: bool) -> None:
        super().__init__(problem)
        self.hangs = hangs

    def evaluate(self, placements: Placements) -> Measurements:
        if self.hangs and (placements.device[:, -1] == 1).any():
            time.sleep(3600)
        return super().evaluate(placements)


@hookimpl
def placekit_backends() -> list[Component]:
    return [Component("harmful", "a fake that may hang", HarmfulOptions, "placekit_harmful:Harmful")]


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    target = "placekit_testing.fakes:FakeLearnable"
    return [
        PolicyComponent(
            "fake_learnable", "a fake that learns", FakeLearnable.options_class, target, trainer="reinforce"
        )
    ]
