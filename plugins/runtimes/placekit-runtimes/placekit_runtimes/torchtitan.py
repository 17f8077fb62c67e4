"""torchtitan: even pipeline stages, in which the embedding and the output count as layers.

Follows pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py, commit 02ef790, and for the configuration, which is
Python since pull request 2386, torchtitan/config/parallelism.py at 15e2431; the code is our own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from placekit_core import PHASES, NotApplicable, Placement, PlacementError, Problem
from placekit_runtimes.interface import Rule, Runtime, RuntimeMap
from placekit_runtimes.layers import Network, Stages
from placekit_runtimes.options import RuleOptions, TorchtitanOptions


class TorchtitanWeights(Rule):
    """Even stages, with the embedding and the output counted as layers."""

    name = "torchtitan_weights"
    options_class: ClassVar[type[RuleOptions]] = TorchtitanOptions

    def rule(self, problem: Problem, note: Callable[[str], None]) -> Placement:
        """The placement: a stage for each device. Raises NotApplicable where torchtitan refuses."""
        network, devices, o = Network.of(problem), self.ranks(problem), self.options
        counts = stage_layers(network.count(self.name), len(devices), o.input_weight, o.output_weight)
        return network.stages(counts, devices)


def stage_layers(layers: int, stages: int, input_weight: int, output_weight: int) -> list[int]:
    """Layers of each torchtitan stage: stages are even, the embedding counts `input_weight`, the output `output_weight`.

    The remainder goes to the first stages, one layer each. Raises NotApplicable where torchtitan refuses: more stages than
    layers with weights, or a weight above what a stage holds.
    """
    if stages == 1:
        return [layers]
    effective = layers + input_weight + output_weight
    each, rest = divmod(effective, stages)
    if stages > effective:
        raise NotApplicable(
            f"torchtitan cannot divide {effective} layers (counting embedding and output by their weights) into {stages} stages",
            "use fewer devices: policy.devices",
        )
    for name, weight in (("input_weight", input_weight), ("output_weight", output_weight)):
        if weight > each:
            raise NotApplicable(
                f"torchtitan refuses {name}={weight}: a stage holds {each} layers only",
                f"lower policy.{name}, or use fewer devices: policy.devices",
            )
    counts, left = [], layers
    for s in range(stages):
        room = each + (s < rest) - input_weight * (s == 0) - output_weight * (s == stages - 1)
        counts.append(min(room, left))
        left -= counts[-1]
    return counts


class Torchtitan(Runtime):
    """torchtitan with `parallelism.pipeline_parallel_module_fqns_per_model_part`."""

    name = "torchtitan"
    title = "torchtitan"
    versions = ("pytorch/torchtitan at 02ef790 (stages) and 15e2431 (configuration)",)
    default_rule = TorchtitanWeights
    runs = ("training",)

    def write(self, problem: Problem, placement: Placement) -> RuntimeMap:
        """Lines for a function that makes a configuration, `config`: the ranks, and the modules of each stage.

        A stage has children of the model, and elements of its lists. With p ranks, stage i of s is on rank i mod p, under an
        interleaved schedule. Raises PlacementError, besides the errors of `Stages.of`, for a module with parameters that is in
        several stages.
        """
        stages = Stages.of(problem, placement, self.title, loops=True)
        parts: list[list[str]] = [[] for _ in stages.counts]
        found = _parts(stages)
        for module, (where, has_parameters) in found.items():
            if len(where) > 1 and has_parameters:
                raise PlacementError(
                    f"torchtitan divides only children of the model and elements of its lists, but {module!r} is in stages"
                    f" {' and '.join(map(str, where))}",
                    "give the importer the module whose child is the list of layers",
                )
            for s in where:
                parts[s].append(module)
        idle = [m for m in problem.graph.attributes.get("stateless", ()) if m not in found]
        for part in parts:  # each stage calls a dropout that drops nothing, and torchtitan removes what is not named
            part += idle
        options = {"degree": len(stages.ranks), "module_fqns_per_model_part": parts}
        if len(parts) > len(stages.ranks):
            options["schedule"] = "Interleaved1F1B"
        lines = [f"config.parallelism.pipeline_parallel_{key} = {json.dumps(value)}" for key, value in options.items()]
        return stages.map("\n".join(lines), stages.launch_notes, trains=True)


def _parts(stages: Stages) -> dict[str, tuple[list[int], bool]]:
    """The children of the model, with elements for lists: stages in which each works, and whether it has parameters."""
    network = stages.layers.network
    blocks, graph = network.blocks, network.problem.graph
    stage = network.spread(stages.of_layer, 0, len(stages.counts) - 1)
    works = graph.kernel & (graph.phase == PHASES.index("forward"))
    owns = graph.op_type.is_value("parameter") | graph.op_type.is_value("buffer")
    found: dict[str, tuple[set[int], bool]] = {}
    order = graph.topological_order
    for v in [*order[works[order]].tolist(), *np.flatnonzero(owns).tolist()]:
        child, _, rest = graph.module[v].partition(".")
        if child not in ("", "loss"):
            index = rest.partition(".")[0]
            name = f"{child}.{index}" if index.isdigit() else child
            where, has = found.get(name, (set(), False))
            if works[v] or not where:
                where = where | {int(stage[blocks.of_op[v]])}
            found[name] = where, has or bool(owns[v])
    return {name: (sorted(where), has) for name, (where, has) in found.items()}


RUNTIME = Torchtitan()
