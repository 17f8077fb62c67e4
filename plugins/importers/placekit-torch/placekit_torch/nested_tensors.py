"""Finds and replaces tensors in the arguments and outputs of a module: in containers, dataclasses, caches."""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import torch
import torch.utils._pytree as pytree

from placekit_core import ImporterError
from placekit_torch.error_lines import first_line
from placekit_torch.step import Step

_CONTAINERS = (tuple, list, dict, OrderedDict, defaultdict, deque)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Generator)


def _is_leaf(value: Any) -> bool:
    """Whether a value is neither a container nor a mapping such as a `ModelOutput`."""
    return not (type(value) in _CONTAINERS or pytree.is_namedtuple_instance(value)) and not (
        isinstance(value, Mapping) and type(value) in pytree.SUPPORTED_NODES
    )


@contextlib.contextmanager
def _copied_as(replacement: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    def deepcopied(tensor: torch.Tensor, memo: Any) -> torch.Tensor:
        return replacement(tensor)

    with contextlib.ExitStack() as stack:
        for kind in (torch.Tensor, torch.nn.Parameter):
            stack.enter_context(mock.patch.object(kind, "__deepcopy__", deepcopied))
        yield


def _inside(value: Any) -> list[torch.Tensor]:
    """The tensors in an object, in the order of `copy.deepcopy`; an object that cannot be copied counts as empty."""
    found: list[torch.Tensor] = []

    def seen(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    if isinstance(value, _PLAIN) or callable(value):
        return []
    try:
        with _copied_as(seen):
            copy.deepcopy(value)
    except Exception as e:  # an object with a lock, for example, is passed on unchanged
        kind = type(value).__name__
        if "cache" in kind.lower():  # the module changes it, and tracing calls the module several times
            raise ImporterError(
                f"a {kind} among the inputs cannot be copied for tracing: {type(e).__name__}: {first_line(e)}",
                "use a DynamicCache or a StaticCache",
            ) from e
        return []
    return found


def replaced(value: Any, replacement: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A copy of `value` with each tensor `t` replaced by `replacement(t)`; objects without tensors are shared."""

    def leaf(part: Any) -> Any:
        if isinstance(part, torch.Tensor):
            return replacement(part)
        if not _inside(part):
            return part
        with _copied_as(replacement):
            return copy.deepcopy(part)

    return pytree.tree_map(leaf, value, is_leaf=_is_leaf)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in `value`; a tensor that occurs twice is listed twice."""
    return [
        t
        for part in pytree.tree_leaves(value, is_leaf=_is_leaf)
        for t in ([part] if isinstance(part, torch.Tensor) else _inside(part))
    ]


@dataclass(frozen=True)
class Inputs:
    """The distinct tensors among the inputs and targets of a step.

    Attributes:
        tensors: the tensors.
        names: a name for each.
        kept: names of tensors in objects that the module may change, such as a key-value cache.
        rebuild: takes replacements for `tensors`; returns positional arguments, keyword arguments and targets.
    """

    tensors: list[torch.Tensor]
    names: list[str]
    kept: frozenset[str]
    rebuild: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]]


def flat_inputs(step: Step, mode: Literal["train", "inference"]) -> Inputs:
    """The tensors of a step. A tensor that occurs twice is one input; each `rebuild` copies objects."""
    arguments, keywords = step.arguments
    whole = {"input": (arguments, keywords), "target": step.loss_arguments if mode == "train" else ()}
    tensors: list[torch.Tensor] = []
    names: list[str] = []
    kept: list[str] = []
    number: dict[int, int] = {}
    for path, value in pytree.tree_flatten_with_path(whole, is_leaf=_is_leaf)[0]:
        keys = [str(getattr(k, "key", getattr(k, "idx", k))) for k in path]
        name = ".".join([keys[0], *keys[2 if keys[0] == "input" else 1 :]])
        is_tensor = isinstance(value, torch.Tensor)
        for i, tensor in enumerate([value] if is_tensor else _inside(value)):
            if id(tensor) not in number:
                number[id(tensor)] = len(tensors)
                tensors.append(tensor)
                names.append(name if is_tensor else f"{name}.{i}")
                kept += [] if is_tensor else [names[-1]]

    def rebuild(given: Any) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        both = replaced(whole, lambda t: given[number[id(t)]])
        return (*both["input"], both["target"])

    return Inputs(tensors, names, frozenset(kept), rebuild)


def plain_tensors(module: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, str, torch.Tensor]]:
    """Module, attribute, full name and tensor of attributes that are neither parameters nor buffers."""
    for path, part in module.named_modules():
        for key, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                yield part, key, f"{path}.{key}".lstrip("."), value
