"""The fake mode of a trace, which also knows the values of some tensors.

It keeps the values of small tensors that depend on no data, and with `values` those of all tensors. A value is stored as
`FakeTensor.constant`, from which torch computes the values of results next to their shapes. Code that reads a value
(`.item()`, `.tolist()`, `if t:`, a boolean mask) gets it; reading an unknown value is an error.
"""

from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils.weak import WeakIdKeyDictionary

from placekit_core import ImporterError
from placekit_torch.error_lines import calling_line
from placekit_torch.shortcuts import ShapeMode, ordinary

_SMALL = 4096  # values of tensors with at most this many elements are always kept
_LARGE = 1024 * _SMALL  # larger values are kept up to this many elements, and `_MEMORY` bytes in all
_MEMORY = 2**29
SPARSE = (
    "only dense tensors are imported: use a dense layer (sparse=False), or gather and scatter (index_select, index_add)"
)
_aten = torch.ops.aten
_CREATED = frozenset(
    getattr(_aten, name)
    for name in ("arange", "full", "zeros", "ones", "scalar_tensor", "linspace", "eye", "tril_indices", "triu_indices")
)
_SAME = frozenset([_aten.full, _aten.zeros, _aten.ones])
_FILLED = {_aten.zeros_like: 0, _aten.ones_like: 1, _aten.new_zeros: 0, _aten.new_ones: 1}
_FILLED |= {_aten.empty: 0, _aten.new_empty: 0, _aten.empty_like: 0}  # each is written before it is read
_COMPARED = frozenset([_aten.lt, _aten.le, _aten.gt, _aten.ge])
_READS = frozenset([torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape])


class TraceMode(ShapeMode):  # type: ignore[no-untyped-call]
    """Fake tensors, with values for tensors that the code creates (`torch.arange(8)`) and that are computed from them.

    The integer and boolean inputs have values, too (`know`): masks, lengths, labels, edges. Results of known values are
    known, within the limits `_LARGE` and `_MEMORY`.

    Some values are assumed. A single random number is almost 1, so that LayerDrop (`if torch.rand([]) < rate: skip`) keeps
    every layer. All numbers are finite, so that `if not torch.isfinite(x).all()` has an answer. No number is exactly
    0, so that `images[(images != 0).any(1)]` keeps all. `topk` and `argmax` return positions in turn, so that a router's
    experts get equal loads.

    Attributes:
        routed: lines that read values computed from the assumed positions of `topk` and `argmax`.
        reads: lines that read values of the example: of its integers and booleans, or with `values` of all tensors.
        drawn: lines that compare a single random number with a rate above 0.
    """

    def __init__(self, *, values: bool = False) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.values = values
        self.reads: dict[str, None] = {}
        self.drawn: dict[str, None] = {}
        self.routed: dict[str, None] = {}
        self._positions: Any = WeakIdKeyDictionary()  # of topk and argmax, and tensors computed from them
        self._inputs: Any = WeakIdKeyDictionary()  # inputs with known values, and tensors computed from them
        self._numbers: dict[int, torch.Tensor] = {}  # single random numbers, by id
        self._kept = 0  # bytes of large known values
        self._inside = False  # while torch finds the shape of a result; tensors get no values then

    def __copy__(self) -> TraceMode:
        """The mode itself, so that copies of fake tensors stay in it; `nn.TransformerEncoder` copies its layer."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TraceMode:
        return self

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of `op`, with its value where it is known."""
        kwargs = kwargs or {}
        if self._inside:
            return super().__torch_dispatch__(op, types, args, kwargs)
        _refuse_sparse(op)
        self._note(op, args)
        if getattr(op, "_overloadpacket", None) is _aten._ctc_loss:
            return self._ctc_loss(*args)
        if op is _aten.index.Tensor and not self.values:
            args = self._with_positions(*args)
        with self._without_values(op, args, kwargs):
            result = super().__torch_dispatch__(op, types, args, kwargs)
        if not isinstance(result, FakeTensor) or result.constant is None:
            self._give_value(op, args, kwargs, result)
        if not self.values:
            self._route(op, args, kwargs, result)
            self._follow(self._inputs, args, kwargs, result)
        return result

    def may_turn_const(self, t: torch.Tensor) -> bool:
        """Whether the value of a result is kept."""
        usual = t.layout is torch.strided and not self.is_our_fake(t) and t.device.type != "meta"
        return usual and (self.values or self._may_keep([t]))

    def forget(self, graph: torch.fx.Graph) -> None:
        """Drop all values at the end of a trace, when only shapes matter."""
        self.values = False
        for node in graph.nodes:
            for tensor in pytree.tree_leaves(node.meta.get("val")):
                if isinstance(tensor, FakeTensor):
                    tensor.constant = None

    def know(self, tensor: FakeTensor, value: torch.Tensor) -> None:
        """Keep the value of an integer or boolean input, or with `values` of any tensor."""
        whole = not _is_real(value)
        if self.values:
            self.give(tensor, value)
        elif whole and value.device.type == "cpu" and self._may_keep([value]) and not self.is_our_fake(value):
            self.give(tensor, value)
            self._inputs[tensor] = None

    def _with_positions(self, tensor: Any, indices: Any) -> tuple[Any, Any]:
        """The arguments of an index operation, with known masks replaced by the positions that they select."""
        if all(t is None or t.constant is not None for t in (tensor, *indices)):
            return tensor, indices
        found: list[Any] = []
        for index in indices:
            known = isinstance(index, FakeTensor) and index.constant is not None
            if known and index.dtype in (torch.bool, torch.uint8):
                with no_dispatch():
                    places = index.constant.nonzero().unbind(1)
                found += [self.fake_tensor_converter.from_real_tensor(self, p.contiguous()) for p in places]
            else:
                found.append(index)
        return tensor, found

    def _ctc_loss(self, scores: Any, targets: Any, frames: Any, lengths: Any, *others: Any) -> tuple[Any, Any]:
        """The results' shapes, which torch does not know: losses, and [batch, frames, 2 x longest target + 1]."""
        known = lengths.tolist() if isinstance(lengths, torch.Tensor) else lengths
        batch = len(known)
        return scores.new_empty(batch), scores.new_empty(batch, scores.shape[0], 2 * max(known) + 1)

    @contextlib.contextmanager
    def _without_values(self, op: Any, args: Any, kwargs: Any) -> Iterator[None]:
        """Hide known values from operators whose result shapes do not depend on values.

        Otherwise torch would compute a result of any size before asking whether to keep it, and `labels[x]` with unknown `x`
        would take the buffer that torch allocates to find the shape for its value.
        """
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, FakeTensor)]
        hidden = [(t, t.constant) for t in given if t.constant is not None]
        if self.values or not (ordinary(op) or (op is _aten.index.Tensor and len(hidden) < len(given))):
            yield
            return
        for tensor, _ in hidden:
            tensor.constant = None
        self._inside = True
        try:
            yield
        finally:
            self._inside = False
            for tensor, value in hidden:
                tensor.constant = value

    def _follow(self, group: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Add results with known values to a group of tensors, if an argument is in the group."""
        if group and any(t in group for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, FakeTensor)):
            for made in pytree.tree_leaves(result):
                if isinstance(made, FakeTensor) and made.constant is not None:
                    group[made] = None

    def _note(self, op: Any, args: Any) -> None:
        if _READS & set(getattr(op, "tags", ())) and not _is_plain_index(op, args):
            given = pytree.tree_leaves(args) if self._inputs else ()
            if self.values or any(isinstance(t, FakeTensor) and t in self._inputs for t in given):
                self.reads.setdefault(calling_line())
        packet = getattr(op, "_overloadpacket", None)
        is_number = packet in _COMPARED and isinstance(args[0], FakeTensor) and id(args[0].constant) in self._numbers
        if is_number and (not isinstance(args[1], float | int) or args[1] > 0):
            self.drawn.setdefault(calling_line())

    def _route(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Assume positions for `topk` and `argmax`, in turn, and track the tensors computed from them."""
        packet = getattr(op, "_overloadpacket", None)
        found = result[1] if packet is _aten.topk else result
        if packet in (_aten.topk, _aten.argmax) and isinstance(args[0], FakeTensor) and found.dim() > 0:
            choices = args[0].shape[
                (args[2] if len(args) > 2 else -1) if packet is _aten.topk else (args[1:2] or (-1,))[0]
            ]
            if args[0].is_floating_point() and 0 < found.numel() <= _LARGE and found.constant is None:
                with no_dispatch():
                    self.give(found, (torch.arange(found.numel()) % choices).view(found.shape))
                self._positions[found] = None
            return
        given = pytree.tree_leaves((args, kwargs)) if self._positions else ()
        if any(isinstance(t, FakeTensor) and t in self._positions for t in given):
            if _READS & set(getattr(op, "tags", ())) and not _is_plain_index(op, args):
                self.routed.setdefault(calling_line())
            self._follow(self._positions, args, kwargs, result)

    def _give_value(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        packet = getattr(op, "_overloadpacket", None)
        if not self.values:
            if packet is _aten.rand and result.numel() == 1 and result.device.type == "cpu":
                self.give(result, torch.full(result.shape, 1 - 2**-11, dtype=result.dtype))
                self._numbers[id(result.constant)] = result.constant
            elif (answer := _if_usual(packet, args)) is not None:
                with no_dispatch():
                    self.give(result, torch.full((), answer).expand(result.shape))
                if packet in (_aten.eq, _aten.ne) and args[1] is not args[0] and args[1] == 0:
                    self._inputs[result] = None
            elif packet in _CREATED and result.numel() <= _SMALL and result.device.type == "cpu":
                with no_dispatch():
                    self.give(result, op(*args, **kwargs))
            elif packet in _SAME and not _is_real(result) and result.device.type == "cpu":
                with no_dispatch():
                    self.give(result, op([], *args[1:], **kwargs).expand(result.shape))
            elif packet in _FILLED and not _is_real(result) and self._may_keep([result]):
                with no_dispatch():
                    self.give(result, torch.full(result.shape, _FILLED[packet], dtype=result.dtype))
            if torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()):
                return
        unknown = [t for t in pytree.tree_leaves(result) if isinstance(t, FakeTensor) and t.constant is None]
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, FakeTensor)]
        if not unknown or not (given or self.values) or any(t.constant is None for t in given):
            return
        if not self.values and not self._may_keep(unknown):
            return
        real_args, real_kwargs = pytree.tree_map_only(FakeTensor, lambda t: t.constant, (args, kwargs))
        with no_dispatch():
            real = op(*real_args, **real_kwargs)
        for made, value in zip(pytree.tree_leaves(result), pytree.tree_leaves(real), strict=True):
            if isinstance(made, FakeTensor) and made.constant is None and isinstance(value, torch.Tensor):
                self.give(made, value)

    def give(self, tensor: FakeTensor, value: torch.Tensor) -> None:
        """Keep the value of a fake tensor."""
        tensor.constant = value
        self.fake_tensor_converter.add_constant_storage_mapping(tensor)
        if value.numel() > _SMALL:
            size = value.numel() * value.element_size()
            self._kept += size
            weakref.finalize(value, self._release, size)

    def _release(self, size: int) -> None:
        self._kept -= size

    def _may_keep(self, tensors: Sequence[torch.Tensor]) -> bool:
        large = [t for t in tensors if t.numel() > _SMALL]
        size = sum(t.numel() * t.element_size() for t in large)
        return not large or (self._kept + size <= _MEMORY and all(t.numel() <= _LARGE for t in large))


@functools.cache
def _refuse_sparse(op: Any) -> None:
    """Raise ImporterError for torch's operators of sparse tensors; users' operators may have such a name."""
    if op.namespace in ("aten", "prims") and "sparse" in str(op):
        raise ImporterError(
            f"{op} makes or reads a sparse tensor, which has no fixed number of bytes{calling_line()}",
            SPARSE,
        )


def _is_real(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _if_usual(packet: Any, args: Any) -> bool | None:
    """The answer of `isfinite`, `isinf`, `isnan`, a comparison inside them, or with 0; None for others, and known numbers."""
    if args and isinstance(args[0], FakeTensor) and args[0].constant is not None:
        return None
    if packet in (_aten.isnan, _aten.isinf):
        return False
    if packet not in (_aten.eq, _aten.ne) or not isinstance(args[0], FakeTensor) or not args[0].is_floating_point():
        return None
    same = args[0] is args[1]
    rare = isinstance(args[1], float | int) and (args[1] == 0 or math.isinf(args[1]))
    return (packet is _aten.eq) == same if same or rare else None


@contextlib.contextmanager
def numbers_of_tensors() -> Iterator[None]:
    """Let `torch.tensor([t, ...])` ask single fake tensors for their values; it would read memory that they do not have."""
    original = torch.tensor

    def plain(data: Any) -> Any:
        if isinstance(data, list | tuple):
            return [plain(part) for part in data]
        lazy = isinstance(data, torch.Tensor) and type(data) is not torch.Tensor and data.numel() == 1
        return data.item() if lazy else data

    def tensor(data: Any, **options: Any) -> torch.Tensor:
        return original(plain(data) if isinstance(data, list | tuple) else data, **options)

    with mock.patch.object(torch, "tensor", tensor):
        yield


def _is_plain_index(op: Any, args: Any) -> bool:
    """Whether the operator is an index without boolean masks; only masks make its shape depend on data."""
    masks = (torch.bool, torch.uint8)
    return op is _aten.index.Tensor and not any(t is not None and t.dtype in masks for t in args[1])
