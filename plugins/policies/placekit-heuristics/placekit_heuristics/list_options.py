"""The list schedulers `critical_path`, `etf`, `heft`, `cpop`, `peft`, `m_topo`, `m_etf`, `m_sct`, and their options."""

from __future__ import annotations

from pydantic import Field

from placekit_core import Options, PolicyComponent


class ListSchedulingOptions(Options):
    """Options of `etf`, `heft`, `cpop` and `peft`."""

    samples: int = Field(1, ge=1, description="schedules to make; if more than one, evaluate all and take the best")


class CriticalPathOptions(ListSchedulingOptions):
    """Options of policy `critical_path`."""

    samples: int = Field(50, ge=1, description="schedules to make; if more than one, evaluate all and take the best")


LIST_SCHEDULING = "placekit_heuristics.list_scheduling"
BAECHI = "placekit_heuristics.baechi"
BAECHI_PAPER = "Jeon et al. 2020, Baechi: fast device placement of machine learning graphs"

COMPONENTS = [
    PolicyComponent(
        name="critical_path",
        summary="list scheduling by longest path to an exit, onto the device of earliest start; best of 50",
        config=CriticalPathOptions,
        target=f"{LIST_SCHEDULING}:CriticalPath",
        paper="Kwok and Ahmad 1999; baseline of Doppler (ICLR 2026)",
    ),
    PolicyComponent(
        name="etf",
        summary="list scheduling of the operation and device with the earliest start",
        config=ListSchedulingOptions,
        target=f"{LIST_SCHEDULING}:Etf",
        paper="Hwang, Chow, Anger and Lee 1989, Scheduling precedence graphs in systems with interprocessor communication",
    ),
    PolicyComponent(
        name="heft",
        summary="list scheduling by upward rank, onto the device of earliest finish, filling gaps",
        config=ListSchedulingOptions,
        target=f"{LIST_SCHEDULING}:Heft",
        paper="Topcuoglu, Hariri and Wu 2002, Performance-effective and low-complexity task scheduling",
    ),
    PolicyComponent(
        name="cpop",
        summary="heft with a critical path on one device",
        config=ListSchedulingOptions,
        target=f"{LIST_SCHEDULING}:Cpop",
        paper="Topcuoglu, Hariri and Wu 2002, Performance-effective and low-complexity task scheduling",
    ),
    PolicyComponent(
        name="peft",
        summary="list scheduling that looks ahead by a table of optimistic costs",
        config=ListSchedulingOptions,
        target=f"{LIST_SCHEDULING}:Peft",
        paper="Arabnejad and Barbosa 2014, List scheduling algorithm for heterogeneous systems by an optimistic cost table",
    ),
    PolicyComponent(
        name="m_topo",
        summary="groups in topological order, one device after another, each up to its share of the memory",
        config=Options,
        target=f"{BAECHI}:MTopo",
        paper=BAECHI_PAPER,
    ),
    PolicyComponent(
        name="m_etf",
        summary="list scheduling of the operation and device with the earliest start, ties in topological order",
        config=Options,
        target=f"{BAECHI}:MEtf",
        paper=BAECHI_PAPER,
    ),
    PolicyComponent(
        name="m_sct",
        summary="m_etf with devices that wait for favorite children, which a linear program chooses",
        config=Options,
        target=f"{BAECHI}:MSct",
        paper=BAECHI_PAPER,
    ),
]
