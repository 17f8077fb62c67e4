"""Memory of recurrent networks on one GPU, and of the weight gradients of all steps if they were kept until they are summed.

    python benchmarks/weight_gradients.py

TensorFlow of the papers' time sums the gradients of a parameter that is used at 40 steps in one operation, so it keeps all of
them; in placekit's graphs they are added one by one. Simulated on `k80x2`, in GiB. The last two columns are the memory
traffic of a step, and the part of it that the sums have.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from placekit_core import PHASES, Graph, load_programs, place

BACKWARD, UPDATE = PHASES.index("backward"), PHASES.index("update")
NETWORKS: list[tuple[str, dict[str, int]]] = [
    ("rnnlm", {}),
    ("rnnlm", {"layers": 4}),
    ("nmt", {}),
    ("nmt", {"layers": 4}),
    ("nmt", {"layers": 8}),
    ("nmt", {"batch": 128}),
]


def backward_inputs(graph: Graph, operations: Iterable[int]) -> set[int]:
    """The tensors that these operations read and the backward pass made."""
    return {int(t) for v in operations for t in graph.inputs(v) if graph.phase[graph.tensor_producer[t]] == BACKWARD}


def step_gradients(graph: Graph) -> list[int]:
    """The matrix products whose sums are the gradients of parameters: one per parameter and step."""
    products: set[int] = set()
    todo = backward_inputs(graph, np.flatnonzero(graph.phase == UPDATE).tolist())
    while todo:
        tensor = todo.pop()
        producer = int(graph.tensor_producer[tensor])
        made_by = graph.op_type[producer]
        if made_by == "aten.add":
            todo |= backward_inputs(graph, [producer])
        elif made_by == "aten.mm":
            products.add(tensor)
    return sorted(products)


def traffic(graph: Graph) -> tuple[float, float]:
    """Bytes that all operations access, and bytes that sums of the backward pass access."""
    sums = graph.op_type.is_value("aten.add") & (graph.phase == BACKWARD)
    return float(graph.bytes_accessed.sum()), float(graph.bytes_accessed[sums].sum())


def main() -> None:
    """Print the table."""
    print("GiB               peak, one GPU  parameters and state  weight gradients of all steps  traffic  of sums")
    for name, options in NETWORKS:
        [program] = load_programs(name, **options)
        graph = program.graph
        peak = place(program, cluster="k80x2", policy="single_gpu").summary.peak_bytes["k80:0"]
        gradients = graph.tensor_bytes[step_gradients(graph)].sum()
        sizes = [peak, graph.persistent_bytes.sum(), gradients, *traffic(graph)]
        label = " ".join([name, *(f"{k}={v}" for k, v in options.items())])
        print(f"{label:15}" + "".join(f"{x / 2**30:{w}.2f}" for x, w in zip(sizes, (16, 22, 31, 9, 9), strict=True)))


if __name__ == "__main__":
    main()
