"""Module paths of nodes and weights, from what exporters write.

- torch's exporter by tracing names nodes `/model/layers.0/self_attn/MatMul`: modules that were called, then the operator. A
  container that was called stands before its child, which has the container's name, too: `/layer1/layer1.0/conv1/Conv`.
- torch's exporter by `torch.export` writes the modules into the node's metadata, `pkg.torch.onnx.name_scopes`.
- Others, such as tf2onnx, name nodes `model/block/conv/Conv2D`.

A node without scope belongs to the module of its weights, if they have names such as `layer1.0.conv1.weight`.
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
    """Path of the module that a node came from; empty if its name and metadata do not say."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES and len(entry.value) < _LONG:
            found = _names(entry.value)
            if len(found) > 1:
                return found[-2]
    *parts, _ = node.name.split("/")
    return _joined(p for p in parts if p)


def _names(text: str) -> list[str]:
    """The list of texts that `text` is in Python; empty if it is something else."""
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
    """The module of a weight: that in its name if there is such a module, else that of the first node that reads it."""
    own = name.rpartition(".")[0]
    return own if own in scopes or (not reader and _is_weight(name)) else reader


def weights_module(names: Iterable[str]) -> str:
    """The module of a node without scope: that of its first weight with a name as torch gives it."""
    return next((name.rpartition(".")[0] for name in names if _is_weight(name)), "")


def _is_weight(name: str) -> bool:
    return name.rpartition(".")[2] in _WEIGHTS and "/" not in name


def with_outer(module: str) -> Iterator[str]:
    """A module's path, and the paths of the modules that it is in."""
    while module:
        yield module
        module = module.rpartition(".")[0]
