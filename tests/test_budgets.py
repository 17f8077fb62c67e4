"""Rooms have budgets: lines of .py and .js, tests apart. One that shrinks lowers its ceiling; one that grows says why."""

from __future__ import annotations

from tests.repo import ROOT, tracked

# The first targets of the core (2,900, 2,000, 1,100) and of placekit-scheduling (3,350) left out that docstrings with shapes,
# units and errors are a third of their lines, and that each bound and each rule is a loop of its own.
CEILINGS = {
    # weights that do not fit end a run before a long import; hosts, error bands; since 4,100: value functions of policies; since
    # 4,150: methods that plugins add to results, examples in the docstrings of hooks
    # since 4,250: hooks for machines in words, and for exports on pages
    "placekit_core/contracts": 4_300,
    # a plugin that takes the name of a command, or misspells a hook, is told so; headroom, launching; since 3,750: graphs of
    # imports are kept with all that they depend on, so that a second run needs no torch
    "placekit_core/run": 4_250,
    # `plugins` lists what packages add to plugins, such as runtimes; since 1,500: `cluster=` takes machines in words, whose
    # commas differ from those of a sweep
    "placekit_core/cli": 1_600,
    # target 3,000; 25 models by hand, 250 architectures in every mode, rates of devices from published tables, the table of
    # published speeds; checkpoints beside published sizes; llama.cpp on a CPU beside its prediction; questions of people; moves
    # under `blocking_latency`; large planted graphs, with their chart; published training plans, and three models to plan; since
    # 5,800: networks as papers describe them beside their faster twins; since 5,900: caveats stand in results, not in pages
    "benchmarks": 5_950,
    "plugins/backends/placekit-cuda": 2_700,  # target 2,600
    # target 3,000; launches of stages; `blocking_latency` updates depths and calls after a move; since 3,600: replicas of stages,
    # splits of single nodes, equal stages and replicas as baselines; a kernel that looks nothing up without replicas
    "plugins/backends/placekit-pipeline": 4_475,
    "plugins/backends/placekit-sim": 1_290,  # hosts that launch; times in ticks
    "plugins/commands/placekit-accuracy": 700,  # target 500; placements of overrides, and bands for results
    "plugins/commands/placekit-doctor": 650,  # target 500; shows and removes kept imports
    # target 1,800; `cluster kinds`; slots, memory of hosts and own kinds in words; measured rates; since 2,700: words as people
    # write them; since 2,850: a machine as all commands name it; since 2,900: plans with more words, machines of runs in words
    "plugins/commands/placekit-inspect": 2_950,
    # target 3,800; since 4,200: a policy with a network in torch as a template; since 4,300: value functions of policies
    "plugins/development/placekit-testing": 4_350,
    "plugins/distributed/placekit-ray": 1_750,  # target 1,500; a run outlives its cluster
    "plugins/groupers/placekit-grouping": 700,
    "plugins/importers/placekit-einsum": 1_300,  # target 1,250
    "plugins/importers/placekit-formats": 2_000,
    # target 1,400; transformers of diffusers, experts in few bits, images of models that read text, too; since 1,850: decoders as
    # inference runtimes run them; since 2,250: importer checkpoint, 1,300 lines for headers of files, formats of weights, tables
    # of names, and configurations of any architecture; since 3,850: what llama.cpp allocates besides weights; since 4,200: towers
    # for images; since 4,500: names of models as people write them
    "plugins/importers/placekit-models": 4_750,
    "plugins/importers/placekit-onnx": 1_400,
    # target 5,000; operations that write in place are told from copies, and values that code with images and sound reads
    "plugins/importers/placekit-torch": 5_250,
    "plugins/importers/placekit-zoo": 2_600,
    "plugins/libraries/placekit-layers": 1_100,
    "plugins/libraries/placekit-partitioning": 450,  # graphs of units, for coarsening by other weights than bytes
    # bounds from launches; chains whose weights do not fit on fast devices; one process compiles, small problems compile little
    "plugins/libraries/placekit-scheduling": 5_100,
    # since 2,000: where the parts of networks are placed, as tables and pictures; few executions after searching or learning
    "plugins/papers/placekit-papers": 2_250,
    "plugins/policies/placekit-doppler": 2_050,  # target 1,700; since 2,000: the method in plain torch beside its compiled twin
    "plugins/policies/placekit-gdp": 500,
    "plugins/policies/placekit-heuristics": 1_650,  # target 1,600
    "plugins/policies/placekit-metis": 130,
    "plugins/policies/placekit-placeto": 1_250,  # target 1,100; since 1,200: the paper's network on a GPU
    "plugins/policies/placekit-post": 400,  # target 355
    "plugins/policies/placekit-scotch": 230,
    # target 2,800; fewer devices where nothing is gained; since 3,250: a multilevel method for large graphs
    "plugins/policies/placekit-search": 3_650,
    "plugins/policies/placekit-seq2seq": 850,  # target 700; since 800: the plain network on a GPU
    # target 3,900; since 4,150: rates per second, methods of results; since 4,200: exports with a copy button
    "plugins/reporting/placekit-report": 4_250,
    "plugins/reporting/placekit-tensorboard": 120,
    # target 3,300; errors name what works, steps that a runtime computes otherwise; since 3,750: `plan`, its page, and command
    # lines of llama.cpp and vLLM; since 6,300: images and draft models, several boxes, many GPUs, each runtime's micro-batches,
    # options as people write them, lines that keep the user's own options
    "plugins/runtimes/placekit-runtimes": 6_900,
    # plans of training steps: strategies, profiles of layers, scripts; what torch keeps besides what a stage needs; since 1,600:
    # splits that leave room for it, reasons of empty rows, steps and profiles that cannot be planned; since 1,750: lines for
    # several boxes and unlike GPUs, inputs that scripts cannot divide, parts with the operations of torch's stages; since
    # 1,900: batches of one row, steps that compare rows
    "plugins/runtimes/placekit-training": 1_950,
    "plugins/trainers/placekit-learn": 1_150,  # since 1,000: values and generalised advantages in PPO, networks on a GPU
}
"""A room over its target has its present size, rounded up to 50 lines."""


def lines_of(room: str) -> int:
    """Lines of the code in a folder, without tests and packages of others."""
    found = 0
    for path in tracked():
        parts = path.relative_to(ROOT).parts
        if path.is_relative_to(ROOT / room) and path.suffix in (".py", ".js") and "tests" not in parts:
            found += len(path.read_text(encoding="utf-8").splitlines())
    return found


def test_rooms_stay_within_their_ceilings() -> None:
    over = {room: lines for room, ceiling in CEILINGS.items() if (lines := lines_of(room)) > ceiling}
    assert over == {}, "a room grew: remove what nobody needs, or raise its ceiling and say why in the same commit"


def test_every_room_has_a_ceiling() -> None:
    rooms = {f"placekit_core/{name}" for name in ("contracts", "run", "cli")} | {"benchmarks"}
    rooms |= {p.parent.relative_to(ROOT).as_posix() for p in ROOT.glob("plugins/*/*/pyproject.toml")}
    assert {*CEILINGS} == rooms - {"plugins/bundles/placekit"}
