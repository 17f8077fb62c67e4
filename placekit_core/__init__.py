"""placekit finds which device should run which operation. These are its public names, for users and for plugins.

Importing this package imports neither numpy nor pydantic; each name below is loaded at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placekit_core.contracts import units as units
    from placekit_core.contracts.cluster import (
        UNLIMITED as UNLIMITED,
        Cluster as Cluster,
        DeviceKind as DeviceKind,
        Efficiency as Efficiency,
        Host as Host,
        Launching as Launching,
        OperationClass as OperationClass,
        Routes as Routes,
        load_cluster as load_cluster,
    )
    from placekit_core.contracts.cores import usable_cores as usable_cores
    from placekit_core.contracts.costs import (
        EFFICIENCY as EFFICIENCY,
        MAX_SECONDS as MAX_SECONDS,
        Calibration as Calibration,
        CostFile as CostFile,
        CostTable as CostTable,
        KindCosts as KindCosts,
        launches_of as launches_of,
        roofline as roofline,
        signatures_of as signatures_of,
        with_figures as with_figures,
    )
    from placekit_core.contracts.errors import (
        BackendError as BackendError,
        BudgetExhausted as BudgetExhausted,
        ClusterError as ClusterError,
        ConfigError as ConfigError,
        GraphError as GraphError,
        ImporterError as ImporterError,
        NotApplicable as NotApplicable,
        PlacekitError as PlacekitError,
        PlacementError as PlacementError,
        PluginError as PluginError,
        RunError as RunError,
        shortened as shortened,
        unknown as unknown,
    )
    from placekit_core.contracts.files import (
        FileModel as FileModel,
        parse_json as parse_json,
        parse_text as parse_text,
        parse_yaml as parse_yaml,
        plain as plain,
        read_bytes as read_bytes,
        read_json as read_json,
        reading as reading,
        write_atomically as write_atomically,
    )
    from placekit_core.contracts.graph import PHASES as PHASES, Graph as Graph, Labels as Labels
    from placekit_core.contracts.graph_builder import GraphBuilder as GraphBuilder
    from placekit_core.contracts.graph_file import load_graph as load_graph, save_graph as save_graph
    from placekit_core.contracts.graph_rules import validate_graph as validate_graph
    from placekit_core.contracts.grouping import (
        Grouping as Grouping,
        quotient as quotient,
        strongly_connected as strongly_connected,
    )
    from placekit_core.contracts.hookspecs import (
        Command as Command,
        Component as Component,
        ImporterComponent as ImporterComponent,
        PolicyComponent as PolicyComponent,
        hookimpl as hookimpl,
    )
    from placekit_core.contracts.interfaces import (
        Backend as Backend,
        Checkpoint as Checkpoint,
        EstimatesReturns as EstimatesReturns,
        ExploresNear as ExploresNear,
        Grouper as Grouper,
        Imitates as Imitates,
        Importer as Importer,
        LearnablePolicy as LearnablePolicy,
        Policy as Policy,
        RecomputesLogProb as RecomputesLogProb,
        ReportsKL as ReportsKL,
        ResumablePolicy as ResumablePolicy,
        Rollouts as Rollouts,
        State as State,
        Teaches as Teaches,
        Trainer as Trainer,
        able as able,
    )
    from placekit_core.contracts.ledger import HISTORY as HISTORY, Ledger as Ledger
    from placekit_core.contracts.measurement import (
        Measurements as Measurements,
        Schedule as Schedule,
        Spans as Spans,
    )
    from placekit_core.contracts.options import (
        ImporterOptions as ImporterOptions,
        LearnableOptions as LearnableOptions,
        Options as Options,
    )
    from placekit_core.contracts.placement import Placement as Placement, Placements as Placements
    from placekit_core.contracts.placement_file import (
        PLACEMENT_FILE as PLACEMENT_FILE,
        Assignment as Assignment,
        load_assignment as load_assignment,
        load_placement as load_placement,
        save_placement as save_placement,
    )
    from placekit_core.contracts.problem import Problem as Problem, check_weights as check_weights
    from placekit_core.contracts.program import (
        Deferred as Deferred,
        Executable as Executable,
        Program as Program,
    )
    from placekit_core.contracts.progress import announce as announce, report_progress as report_progress
    from placekit_core.contracts.result import (
        LEAST_GAIN as LEAST_GAIN,
        Baseline as Baseline,
        ErrorBand as ErrorBand,
        Export as Export,
        ProgramResult as ProgramResult,
        ProgramSummary as ProgramSummary,
        Result as Result,
        Summary as Summary,
        compared as compared,
    )
    from placekit_core.contracts.state_file import pack_state as pack_state, unpack_state as unpack_state
    from placekit_core.contracts.task import (
        Best as Best,
        Evaluator as Evaluator,
        Session as Session,
        Task as Task,
    )
    from placekit_core.contracts.version import __version__ as __version__
    from placekit_core.run.api import Search as Search, load_programs as load_programs, place as place, search as search
    from placekit_core.run.failures import (
        BoundError as BoundError,
        Interrupted as Interrupted,
        NothingFits as NothingFits,
        RunFailed as RunFailed,
    )
    from placekit_core.run.registry import Registry as Registry, installed as installed
    from placekit_core.run.trained import load_policy as load_policy

_HOME = {
    "contracts.cluster": "UNLIMITED Cluster DeviceKind Efficiency Host Launching OperationClass Routes load_cluster",
    "contracts.cores": "usable_cores",
    "contracts.costs": "EFFICIENCY MAX_SECONDS Calibration CostFile CostTable KindCosts launches_of roofline "
    "signatures_of with_figures",
    "contracts.errors": (
        "BackendError BudgetExhausted ClusterError ConfigError GraphError ImporterError NotApplicable "
        "PlacekitError PlacementError PluginError RunError shortened unknown"
    ),
    "contracts.files": "FileModel parse_json parse_text parse_yaml plain read_bytes read_json reading write_atomically",
    "contracts.graph": "PHASES Graph Labels",
    "contracts.graph_builder": "GraphBuilder",
    "contracts.graph_file": "load_graph save_graph",
    "contracts.graph_rules": "validate_graph",
    "contracts.grouping": "Grouping quotient strongly_connected",
    "contracts.hookspecs": "Command Component ImporterComponent PolicyComponent hookimpl",
    "contracts.interfaces": (
        "Backend Checkpoint EstimatesReturns ExploresNear Grouper Imitates Importer LearnablePolicy Policy "
        "RecomputesLogProb ReportsKL ResumablePolicy Rollouts State Teaches Trainer able"
    ),
    "contracts.options": "ImporterOptions LearnableOptions Options",
    "contracts.ledger": "HISTORY Ledger",
    "contracts.measurement": "Measurements Schedule Spans",
    "contracts.placement": "Placement Placements",
    "contracts.placement_file": "PLACEMENT_FILE Assignment load_assignment load_placement save_placement",
    "contracts.problem": "Problem check_weights",
    "contracts.program": "Deferred Executable Program",
    "contracts.progress": "announce report_progress",
    "contracts.result": "LEAST_GAIN Baseline ErrorBand Export ProgramResult ProgramSummary Result Summary compared",
    "contracts.state_file": "pack_state unpack_state",
    "contracts.task": "Best Evaluator Session Task",
    "contracts.version": "__version__",
    "run.api": "Search load_programs place search",
    "run.failures": "BoundError Interrupted NothingFits RunFailed",
    "run.registry": "Registry installed",
    "run.trained": "load_policy",
}
"""Each module, and the names that are imported from it."""

_MODULE = {name: module for module, names in _HOME.items() for name in names.split()} | {"units": "contracts.units"}
__all__ = list(_MODULE)


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'placekit_core' has no attribute {name!r}")
    module = importlib.import_module(f"placekit_core.{_MODULE[name]}")
    return module if name == "units" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
