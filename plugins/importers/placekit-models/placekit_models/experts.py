"""Mixtures of experts: a kernel reads the weights of the experts that its tokens chose, not of all experts."""

from __future__ import annotations

from typing import Any

from placekit_torch.experts import NAMES, weights_read

from placekit_core import Graph

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k", "moe_k")


def routing(config: Any) -> tuple[int, int] | None:
    """Number of experts of a layer, and number that each token chooses; None for models without experts."""
    found = [next((n for key in keys if (n := getattr(config, key, None))), None) for keys in (_EXPERTS, _CHOSEN)]
    experts, chosen = found
    return (int(experts), int(chosen)) if experts and chosen else None


def read_chosen(graph: Graph, experts: int, chosen: int) -> Graph:
    """`graph`, in which products of groups read the expected share of the experts' weights.

    Tokens choose at random and independently, each `chosen` different experts, so n tokens miss an expert with probability
    (1 - chosen / experts)^n. One token reads just its own. (Importer torch does not know `chosen`: there, each choice of a
    token is independent of the token's others.)
    """
    bytes_ = graph.bytes_accessed.copy()
    for op in range(graph.n):
        if graph.op_type[op].rpartition(".")[2] not in NAMES:
            continue
        read = graph.inputs(op).tolist()
        weights = [t for t in read if len(graph.shape(t)) == 3 and graph.shape(t)[0] == experts]
        rows = next((graph.shape(t)[0] for t in graph.outputs(op) if len(graph.shape(t)) == 2), 0)
        if weights and rows:
            share = 1 - (1 - chosen / experts) ** (rows / chosen)
            bytes_[op] += (share - weights_read(rows, experts)) * float(graph.tensor_bytes[weights].sum())
    return graph.replace(bytes_accessed=bytes_)
