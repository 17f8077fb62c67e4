"""accelerate and transformers: device maps, run by one host thread that moves tensors between modules.

Follows huggingface/accelerate: src/accelerate/utils/modeling.py at 00cfd46 for the rule, big_modeling.py and hooks.py of 1.15
for the run; the code is our own.
"""

from __future__ import annotations

from placekit_core import PlacekitError, Placement, Problem
from placekit_runtimes.accelerate.device_map import DeviceMap, device_map
from placekit_runtimes.accelerate.fitting import fitted
from placekit_runtimes.accelerate.reading import parse_map
from placekit_runtimes.accelerate.rule import AccelerateAuto
from placekit_runtimes.accelerate.simulation import cost_of
from placekit_runtimes.interface import Runtime, RuntimeCost, RuntimeMap


class Accelerate(Runtime):
    """accelerate's `dispatch_model`, and transformers' `from_pretrained`, with `device_map=`."""

    name = "device_map"
    title = "accelerate"
    versions = ("huggingface/accelerate at 00cfd46 (device_map=auto), 1.15 (dispatch_model)",)
    default_rule = AccelerateAuto

    def write(self, problem: Problem, placement: Placement) -> DeviceMap:
        """A device for each module, as JSON; modules are moved if the map would not fit where accelerate runs it."""
        return fitted(problem, device_map(problem, placement))

    def read(self, problem: Problem, text: str, source: str) -> DeviceMap:
        """Read a user's device map. Raises PlacementError for unknown devices and modules, and for tensors that no key covers."""
        return parse_map(problem, text, source)

    def cost(self, problem: Problem, made: RuntimeMap) -> RuntimeCost:
        """Seconds and memory when one host thread runs the map, which the machine model does not describe."""
        assert isinstance(made, DeviceMap)
        return cost_of(problem, made.located)

    def own_cost(self, problem: Problem) -> tuple[Placement | None, RuntimeCost]:
        """The placement that accelerate itself would choose, and its cost; or None, with the reason in the cost's `error`."""
        try:
            placement = self.rule(problem)
            return placement, self.cost(problem, device_map(problem, placement))
        except PlacekitError as e:
            return None, RuntimeCost(None, error=e.message)


RUNTIME = Accelerate()
