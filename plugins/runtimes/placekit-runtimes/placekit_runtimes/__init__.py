"""Runtimes that people run networks with: their rules as policies, their maps as text, and the cost of a map.

A package adds a runtime by an entry point in the group `placekit.runtimes`, as this package does for its own;
`runtime(name)` is the object that it names, a `placekit_runtimes.interface.Runtime`. Importing this package imports neither
numpy nor torch.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable, Collection
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placekit_core import Command, ConfigError, PlacementError, PluginError, PolicyComponent, hookimpl, unknown
from placekit_runtimes import options

if TYPE_CHECKING:
    from placekit_core import Export, Placement, Problem, Result
    from placekit_runtimes.accelerate.device_map import device_map as device_map
    from placekit_runtimes.accelerate.dispatch import dispatch as dispatch
    from placekit_runtimes.interface import Runtime as Runtime
    from placekit_runtimes.planning.plan import Plan as Plan, plan as plan
    from placekit_runtimes.torch_pipelining import pipeline as pipeline

GROUP = "placekit.runtimes"
_HOME = {
    "Runtime": "interface",
    "device_map": "accelerate.device_map",
    "dispatch": "accelerate.dispatch",
    "pipeline": "torch_pipelining",
    "plan": "planning.plan",
    "Plan": "planning.plan",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'placekit_runtimes' has no attribute {name!r}")
    return getattr(importlib.import_module(f"placekit_runtimes.{_HOME[name]}"), name)


def runtimes() -> list[str]:
    """Names of the installed runtimes, which are the values of `placekit apply --format`; `device_map` is the first."""
    return sorted({e.name for e in entry_points(group=GROUP)}, key=lambda name: (name != "device_map", name))


def runtime(name: str) -> Runtime:
    """The runtime with this name. Raises ConfigError with the names that exist, PluginError if its package is broken."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise unknown("runtime", name, runtimes(), ConfigError)
    packages = " and ".join(e.dist.name for e in found if e.dist is not None)
    if len(found) > 1:
        raise PluginError(f"{len(found)} runtimes are called {name!r}: in {packages}", "uninstall all but one")
    try:
        loaded = found[0].load()
    except Exception as e:
        raise PluginError(f"runtime {name!r} of {packages} is broken: {type(e).__name__}: {e}") from e
    from placekit_runtimes.interface import Runtime

    if not isinstance(loaded, Runtime):
        what = f"the class {loaded.__name__}" if isinstance(loaded, type) else f"a {type(loaded).__name__}"
        raise PluginError(
            f"runtime {name!r} of {packages} is broken: {found[0].value} is {what}",
            "its entry point names an instance of a subclass of placekit_runtimes.Runtime",
        )
    return loaded


_RULES: list[tuple[str, str, type[options.RuleOptions], str, str]] = [
    (
        "accelerate_auto",
        'accelerate\'s device_map="auto": the weights evenly over all GPUs, in order',
        options.AccelerateOptions,
        "accelerate.rule:AccelerateAuto",
        "huggingface/accelerate, src/accelerate/utils/modeling.py at 00cfd46",
    ),
    (
        "accelerate_sequential",
        'accelerate\'s device_map="sequential": the first GPU is filled with weights, then the next',
        options.AccelerateOptions,
        "accelerate.rule:AccelerateSequential",
        "huggingface/accelerate, src/accelerate/utils/modeling.py at 00cfd46",
    ),
    (
        "exo_memory",
        "exo's rule: layers in proportion to memory, on the fewest devices that hold the weights",
        options.RuleOptions,
        "exo:ExoMemory",
        "exo-explore/exo, src/exo/master/placement_utils.py at 027f237",
    ),
    (
        "bandwidth_share",
        "layers in proportion to memory bandwidth, as far as the memory of each device allows",
        options.RuleOptions,
        "rules_of_thumb:BandwidthShare",
        "exo-explore/exo, issue 957 and pull request 2297",
    ),
    (
        "fastest_first",
        "the fastest device is filled to its memory, then the next one",
        options.RuleOptions,
        "rules_of_thumb:FastestFirst",
        "exo-explore/exo, issue 701 and pull request 1088",
    ),
    (
        "llamacpp_layers",
        "llama.cpp's rule: layers in proportion to memory or to tensor_split, the embedding on the CPU",
        options.LlamaCppOptions,
        "llamacpp:LlamaCppLayers",
        "ggml-org/llama.cpp, src/llama-model.cpp at a5410f0",
    ),
    (
        "vllm_even",
        "vLLM's rule: the same number of layers on every GPU, the remainder on the middle stages",
        options.VllmOptions,
        "vllm:VllmEven",
        "vllm-project/vllm, vllm/distributed/utils.py at 5a6541d",
    ),
    (
        "torchtitan_weights",
        "torchtitan's rule: even stages, where the embedding and the output count as layers",
        options.TorchtitanOptions,
        "torchtitan:TorchtitanWeights",
        "pytorch/torchtitan, torchtitan/distributed/pipeline_parallel.py at 02ef790",
    ),
]
"""Name, summary, options, module and class, and source of each rule."""


@hookimpl
def placekit_policies() -> list[PolicyComponent]:
    """The rules of runtimes, two rules of thumb, and `given`."""
    rules = [
        PolicyComponent(
            name=name,
            summary=summary,
            config=config,
            target=f"placekit_runtimes.{target}",
            baseline=name == "accelerate_auto",
            paper=source,
        )
        for name, summary, config, target, source in _RULES
    ]
    given = PolicyComponent(
        name="given",
        summary="a placement of your own: a device map, or the placement.json of a run",
        config=options.GivenOptions,
        target="placekit_runtimes.given:Given",
    )
    return [*rules, given]


@hookimpl
def placekit_commands() -> list[Command]:
    """`plan`, `apply` and `evaluate`."""
    return [
        Command(
            name="plan",
            usage="MODEL [MACHINE] [OPTION=VALUE ...]",
            summary="where a language model runs best, and the lines to paste",
            target="placekit_runtimes.planning.command:main",
            group="place",
        ),
        Command(
            name="apply",
            usage="RUN_DIR [--format FORMAT] [--out FILE]",
            summary="a run's placement, in the form that other code needs",
            target="placekit_runtimes.apply:main",
            group="place",
        ),
        Command(
            name="evaluate",
            usage="MAP.json [OPTION=VALUE ...]",
            summary="what a device map or command line of your own costs",
            target="placekit_runtimes.evaluate:main",
            group="place",
        ),
    ]


@hookimpl
def placekit_result_methods() -> dict[str, Callable[..., Any]]:
    """`result.device_map()`."""
    return {"device_map": _device_map}


def _device_map(result: Result, whole: Collection[str] = ()) -> dict[str, int | str]:
    """The device of each module, as accelerate takes it; warns if the placement splits modules. Raises PlacementError.

    `placekit apply` simulates the map, too: whether it fits, and what it costs.
    """
    from placekit_runtimes.accelerate.device_map import device_map
    from placekit_runtimes.interface import warn_of

    if result.placement is None:
        raise PlacementError("this result has no placement that fits", "its notes say why")
    made = device_map(result.problem, result.placement, whole)
    warn_of("device_map", made)
    return dict(made.devices)


@hookimpl
def placekit_exports(problem: Problem, placement: Placement) -> list[Export]:
    """The placement for each runtime that can express it."""
    from placekit_runtimes.exports import exports

    return exports(problem, placement, [runtime(name) for name in runtimes()])


@hookimpl
def placekit_next_steps(run_dir: Path, result: Result) -> list[str]:
    """`placekit apply` for one PyTorch module on several devices, except towers, which a device map cannot hold."""
    if len(result.programs) != 1 or "programs" in result.summary.config["python_objects"]:
        return []
    [program] = result.programs
    graph, placement = program.problem.graph, program.placement
    if placement is None or "torch" not in graph.attributes or "tower" in graph.columns:
        return []
    if len(set(placement.device.tolist())) == 1:
        return []
    device = program.problem.expand(placement.device).tolist()
    pairs = {(graph.module.codes[v], device[v]) for v in graph.kernel.nonzero()[0].tolist() if graph.phase[v] == 0}
    whole = len({module for module, _ in pairs}) == len(pairs)
    return [
        f"placekit apply {shlex.quote(str(run_dir))} # {'the placement as' if whole else 'whole modules, in'} a device_map"
    ]
