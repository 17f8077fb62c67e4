"""How much the papers' baselines depend on the machine: K80 machines with slower links, launches or another execution.

    python benchmarks/machine_sensitivity.py

Three networks, four policies, nine machines. Each machine is `k80x2` changed in one respect. *first ready, first run* uses
no priorities; *barriers* is the backend `bulk_synchronous`, where transfers never overlap computation. Bandwidth and latency
are those of each link; a route between two devices has two.
"""

from __future__ import annotations

import argparse
import copy
from typing import Any

import yaml

from placekit_core import Result, load_programs, place
from placekit_core.run.config import conf_dir

NETWORKS = ("rnnlm", "nmt", "inception_v3")
POLICIES = ("single_gpu", "expert", "mincut", "scotch")
FIFO = {"name": "simulator", "ready_order": "fifo"}


def preset() -> dict[str, Any]:
    """The cluster preset with two K80 GPUs."""
    data: dict[str, Any] = yaml.safe_load((conf_dir() / "cluster" / "k80x2.yaml").read_text())
    return data


def machine(bandwidth: float = 1.0, latency_s: float = 5e-6, launch_s: float | None = None) -> Any:
    """The preset with `bandwidth` times the bytes per second on every link, another latency, another launch overhead."""
    data = copy.deepcopy(preset())
    for link in data["links"]:
        link.update(bytes_per_s=link["bytes_per_s"] * bandwidth, latency_s=latency_s)
    if launch_s is not None:
        data["kinds"]["k80"]["launch_overhead_s"] = launch_s
    return data


def cases() -> dict[str, tuple[Any, Any]]:
    """Cluster and backend of each row of the table."""
    return {
        "as it is": (preset(), "simulator"),
        "first ready, first run": (preset(), FIFO),
        "barriers": (preset(), "bulk_synchronous"),
        "bandwidth / 10": (machine(bandwidth=0.1), "simulator"),
        "bandwidth / 100": (machine(bandwidth=0.01), "simulator"),
        "latency 0.5 ms": (machine(latency_s=0.5e-3), "simulator"),
        "latency 2 ms": (machine(latency_s=2e-3), "simulator"),
        "bandwidth / 100, 2 ms": (machine(bandwidth=0.01, latency_s=2e-3), "simulator"),
        "launch overhead 0.1 ms": (machine(launch_s=1e-4), "simulator"),
    }


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    for network in NETWORKS:
        print(f"{network + ', seconds':24}" + "".join(f"{p:>12}" for p in POLICIES))
        program = load_programs(network)
        for case, (cluster, backend) in cases().items():
            results = [place(program, cluster=cluster, policy=p, backend=backend) for p in POLICIES]
            print(f"  {case:22}" + "".join(f"{r.value_s:12.3g}" for r in results))
            if case == "as it is":
                _print_transfers(results)


def _print_transfers(results: list[Result]) -> None:
    """How many tensors each placement sends, and how many bytes."""
    schedules = [r.schedule for r in results if r.schedule is not None]
    print(f"  {'  transfers':22}" + "".join(f"{len(s.transfer_tensor):12}" for s in schedules))
    sizes = results[0].problem.graph.tensor_bytes
    print(f"  {'  GB sent':22}" + "".join(f"{sizes[s.transfer_tensor].sum() / 1e9:12.2f}" for s in schedules))


if __name__ == "__main__":
    main()
