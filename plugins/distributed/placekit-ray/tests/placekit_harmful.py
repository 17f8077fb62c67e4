"""A plugin for tests: backend `harmful`, whose evaluation of some placements hangs, raises, or ends its process.

And policy `fake_learnable`, which imports no large library, so that processes are ready soon.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Literal

from placekit_testing.fakes import FakeBackend, FakeLearnable, FakeOptions, FakeSession
from pydantic import Field

from placekit_core import Component, Executable, Measurements, Placements, PolicyComponent, Problem, hookimpl


class HarmfulOptions(FakeOptions):
    """Options of backend `harmful`."""

    does: Literal["nothing", "hang", "raise", "die"] = Field("nothing", description="what it does to the placements")
    to: Literal["none", "last", "all"] = Field(
        "last", description="the placements: with the last group on device 1, ..."
    )
    once: str | None = Field(None, description="a file that it makes; where it exists, nothing happens")
    driver: int | None = Field(None, description="the process where nothing happens")


class Harmful(FakeBackend):
    """The fake backend in all other ways; it may be called from many processes."""

    name = "harmful"
    options_class = HarmfulOptions
    parallel = True

    def open(self, problem: Problem, executable: Executable | None = None) -> FakeSession:
        return HarmfulSession(problem, self.options)


class HarmfulSession(FakeSession):
    """See `HarmfulOptions`."""

    def __init__(self, problem: Problem, options: HarmfulOptions) -> None:
        super().__init__(problem)
        self.options = options

    def evaluate(self, placements: Placements) -> Measurements:
        o = self.options
        hit = {"none": False, "last": bool((placements.device[:, -1] == 1).any()), "all": True}[o.to]
        if hit and o.driver != os.getpid() and not (o.once and Path(o.once).exists()):
            if o.once:
                Path(o.once).touch()
            if o.does == "hang":
                time.sleep(3600)
            if o.does == "raise":
                raise FloatingPointError("what the plugin says")
            if o.does == "die":
                os._exit(1)
        return super().evaluate(placements)


@hookimpl
def placekit_backends() -> list[Component]:
    return [Component("harmful", "a fake that does harm", HarmfulOptions, "placekit_harmful:Harmful")]


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    target = "placekit_testing.fakes:FakeLearnable"
    return [
        PolicyComponent(
            "fake_learnable", "a fake that learns", FakeLearnable.options_class, target, trainer="reinforce"
        )
    ]
