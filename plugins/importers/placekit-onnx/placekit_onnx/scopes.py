"""Finds the module paths of nodes and weights in the names that exporters write.

- torch's tracing exporter names nodes `/model/layers.0/self_attn/MatMul`: the modules that were called, then the operator.
  If a container was called, its name comes twice, also in its child's: `/layer1/layer1.0/conv1/Conv`.
- torch's exporter by `torch.export` writes the modules into the node's metadata, `pkg.torch.onnx.name_scopes`.
- Others, such as tf2onnx, name nodes `model/block/conv/Conv2D`.

A node without a module in its name belongs to the module of its weights, if their names are like `layer1.0.conv1.weight`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from onnx import NodeProto

_SCOPES = "pkg.torch.onnx.name_scopes"
_WEIGHTS = frozenset(
    ["weight", "bias", "running_mean", "running_var", "gamma", "beta", "scale", "kernel", "weight_scale"]
)
_LONG = 10_000


def module_of(node: NodeProto) -> str:
    """Path of the module that a node came from; empty if neither its name nor its metadata has one."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES and len(entry.value) < _LONG:
            found = _names(entry.value)
            if len(found) > 1:
                return found[-2]
    *parts, _ = node.name.split("/")
    return _joined(p for p in parts if p)


def _names(text: str) -> list[str]:
    """Parse a Python list of strings; empty if `text` is something else."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return []
    return value if isinstance(value, list) and all(isinstance(v, str) for v in value) else []


def _joined(parts: Iterable[str]) -> str:
    path: list[str] = []
    for part in parts:
        if path and part.startswith(f"{path[-1]}."):
            path[-1] = part
        else:
            path.append(part)
    return ".".join(path)


def weight_module(name: str, reader: str, scopes: set[str]) -> str:
    """The module of a weight: the module in its name if that exists, else `reader`, the module of its first reader."""
    own = name.rpartition(".")[0]
    return own if own in scopes or (not reader and _is_weight(name)) else reader


def weights_module(names: Iterable[str]) -> str:
    """The module of a node without one: the module of its first weight that has a name as torch gives it."""
    return next((name.rpartition(".")[0] for name in names if _is_weight(name)), "")


def _is_weight(name: str) -> bool:
    return name.rpartition(".")[2] in _WEIGHTS and "/" not in name


def with_outer(module: str) -> Iterator[str]:
    """The path of a module, and of all modules around it."""
    while module:
        yield module
        module = module.rpartition(".")[0]
