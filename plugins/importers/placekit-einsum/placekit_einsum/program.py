"""A language for tensor programs: named tensors, expressions over their dimensions, and how each expression is split.

    t = TensorProgram("chain")
    a, b, c = (t.input(name, "ij", (1000, 1000)) for name in "abc")
    ab = t.einsum("ab", "ik,kj->ij", a, b, parts={"i": 2, "k": 2, "j": 2})   # 8 products, 4 formations
    t.apply("sum", "add", "ij,ij->ij", ab, c)                                # split like its first operand: 4 additions

Every dimension of an expression has a letter, as in an einsum. The tensors that no expression reads are the results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from placekit_core import ImporterError, unknown

UNARY = (
    "identity",
    "abs",
    "exp",
    "log",
    "neg",
    "reciprocal",
    "relu",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "square",
    "tanh",
)
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
REDUCTIONS = ("sum", "max", "min", "product")
ON_COMPLEX = ("identity", "neg", "add", "sub", "mul", "div", "sum", "product", "squeezer")

Kind = Literal["input", "matmul", "elementwise", "reduction", "complexer", "fill", "squeezer"]
Values = Literal["normal", "ones", "rotary"]

MAX_OPERATIONS = 2**16  # per expression
MAX_NUMBERS = 2**44  # in the results of all operations of one expression: sums of their bytes stay below 2**63


@dataclass(eq=False)
class Tensor:
    """A tensor, and the expression that defines it. Made by the methods of `TensorProgram`.

    Attributes:
        name: unique in the program; names the meta-operation.
        kind: kind of the expression.
        function: its function (`relu`, `add`, `max`, `complex`, ...).
        operands: the tensors that it reads.
        labels: for each operand, the letters of its dimensions.
        out: the letters of its own dimensions.
        size: sizes of all dimensions by letter: those of `out`, then the summed or reduced ones.
        parts: by letter, the number of equal parts into which a dimension is split.
        shape: its own shape; differs from `size` only in the last dimension of a complexer.
        is_complex: whether its numbers are complex.
        scale, shift: a function of one operand is f(scale * x + shift); for an input, `scale` is the scale of its values.
        values: how an input is initialised.
        value, above: of a fill: the value on and below the diagonal of its last two dimensions, and the value above it.
    """

    name: str
    kind: Kind
    function: str
    operands: tuple[Tensor, ...]
    labels: tuple[str, ...]
    out: str
    size: dict[str, int]
    parts: dict[str, int]
    shape: tuple[int, ...]
    is_complex: bool = False
    scale: float = 1.0
    shift: float = 0.0
    values: Values = "normal"
    value: float = 0.0
    above: float = 0.0

    @property
    def layout(self) -> tuple[int, ...]:
        """Number of blocks along each of its dimensions."""
        return tuple(self.parts.get(label, 1) for label in self.out)

    @property
    def reduced(self) -> str:
        """The letters of the dimensions that are summed or reduced."""
        return "".join(label for label in self.size if label not in self.out)


class TensorProgram:
    """A tensor program: inputs, and expressions in the order in which they are added.

    Args:
        name: name of its graph.
        parts: parts by tensor and letter; they take precedence over the `parts` of the expressions.

    The `parts` of an expression are given by letter. A missing letter has the parts of the first operand with that letter,
    or else 1. An input without `parts` is split like the first expression that reads it.
    The methods raise ImporterError for arguments that do not fit together.
    """

    def __init__(self, name: str, parts: Mapping[str, Mapping[str, int]] | None = None) -> None:
        self.name = name
        self.tensors: list[Tensor] = []
        self._by_name: dict[str, Tensor] = {}
        self._override = dict(parts or {})

    def input(
        self, name: str, labels: str, shape: Sequence[int], *, parts: Mapping[str, int] | None = None,
        values: Values = "normal", scale: float = 1.0,
    ) -> Tensor:  # fmt: skip
        """Add an input. Its values are normal with standard deviation `scale`, ones, or a rotary embedding [position, d].

        A rotary embedding (Su et al. 2021) holds cosine and sine of position / 10000^(2 r / d) at columns 2 r and 2 r + 1.
        """
        size = self._sizes(name, labels, [(labels, tuple(shape))])
        if values not in get_args(Values):
            raise unknown("kind of values", str(values), get_args(Values), ImporterError)
        if values == "rotary" and (len(shape) != 2 or shape[1] % 2):
            raise ImporterError(f"rotary embedding {name!r} has shape {tuple(shape)}", "make it [position, even width]")
        if values != "normal" and scale != 1.0:
            raise ImporterError(f"values {values!r} of {name!r} take no scale", "leave out scale, or use values=normal")
        tensor = Tensor(name, "input", "", (), (), labels, size, {}, tuple(shape), values=values, scale=scale)
        return self._add(tensor, parts)

    def einsum(self, name: str, spec: str, a: Tensor, b: Tensor, *, parts: Mapping[str, int] | None = None) -> Tensor:
        """Sum of products of two tensors: `ik,kj->ij` is a matrix product."""
        tensor = self._expression(name, "matmul", "product", spec, a, b)
        if not tensor.reduced:
            raise ImporterError(f"einsum {name!r} ({spec}) sums over nothing", 'use apply(name, "mul", ...)')
        return self._add(tensor, parts)

    def apply(
        self, name: str, function: str, spec: str, *operands: Tensor, parts: Mapping[str, int] | None = None,
        scale: float = 1.0, shift: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """Element-wise function of one operand, f(scale * x + shift), or of two; one of the two may be broadcast."""
        if len(operands) not in (1, 2):
            raise ImporterError(f"{name!r} has {len(operands)} operands: an element-wise function takes one or two")
        known = UNARY if len(operands) == 1 else BINARY
        if function not in known:
            raise unknown(f"function of {len(operands)} operands", function, known, ImporterError)
        if len(operands) == 2 and (scale, shift) != (1.0, 0.0):
            raise ImporterError(f"{name!r} has two operands: it takes no scale or shift", "apply `identity` first")
        tensor = self._expression(name, "elementwise", function, spec, *operands)
        if tensor.reduced:
            raise ImporterError(f"{name!r} ({spec}) drops dimension {tensor.reduced[0]!r}", "use einsum or reduce")
        tensor.scale, tensor.shift = scale, shift
        return self._add(tensor, parts)

    def reduce(
        self, name: str, function: str, spec: str, x: Tensor, *, parts: Mapping[str, int] | None = None
    ) -> Tensor:
        """Sum, max, min or product over the dimensions that `spec` drops: `ij->i`."""
        if function not in REDUCTIONS:
            raise unknown("reduction", function, REDUCTIONS, ImporterError)
        tensor = self._expression(name, "reduction", function, spec, x)
        if not tensor.reduced:
            raise ImporterError(
                f"reduction {name!r} ({spec}) drops no dimension", "leave one out of the result: `ij->i`"
            )
        return self._add(tensor, parts)

    def complexer(self, name: str, labels: str, x: Tensor, *, parts: Mapping[str, int] | None = None) -> Tensor:
        """Turn pairs of real numbers in the last dimension into complex numbers, or complex numbers into such pairs."""
        self._check_own(name, x)
        function = "real" if x.is_complex else "complex"
        tensor = self._expression(name, "complexer", function, f"{labels}->{labels}", x)
        if not x.shape:
            raise ImporterError(
                f"{x.name!r}, which complexer {name!r} reads, has no dimension", "add one with squeezer"
            )
        last = x.shape[-1]
        if not x.is_complex and last % 2:
            raise ImporterError(
                f"the last dimension of {x.name!r} is {last}, an odd number", "complex numbers are pairs of numbers"
            )
        tensor.shape = (*tensor.shape[:-1], last * 2 if x.is_complex else last // 2)
        tensor.is_complex = not x.is_complex
        return self._add(tensor, parts)

    def squeezer(self, name: str, spec: str, x: Tensor, *, parts: Mapping[str, int] | None = None) -> Tensor:
        """Adds or removes dimensions of size 1: `bse->se`."""
        self._check_own(name, x)
        before, after = self._split(name, spec, 1)
        size = self._sizes(name, spec, [(before[0], x.shape)])
        dropped = [label for label in before[0] if label not in after and size[label] > 1]
        if dropped:
            raise ImporterError(f"{name!r} ({spec}) drops dimension {dropped[0]!r} of size {size[dropped[0]]}, not 1")
        kept = [label for label in after if label in before[0]]
        if kept != [label for label in before[0] if label in after]:
            raise ImporterError(
                f"{name!r} ({spec}) changes the order of dimensions", 'use apply(name, "identity", ...)'
            )
        size = {label: size.get(label, 1) for label in after}
        shape = tuple(size.values())
        tensor = Tensor(name, "squeezer", "", (x,), (before[0],), after, size, {}, shape, x.is_complex)
        return self._add(tensor, parts)

    def fill(
        self, name: str, labels: str, shape: Sequence[int], value: float = 0.0, *, above: float | None = None,
        parts: Mapping[str, int] | None = None,
    ) -> Tensor:  # fmt: skip
        """A tensor filled with `value`; with `above`, that value above the diagonal of its last two dimensions."""
        size = self._sizes(name, labels, [(labels, tuple(shape))])
        if above is not None and len(shape) < 2:
            raise ImporterError(
                f"fill {name!r} has {len(shape)} dimensions, and so no diagonal", "leave out `above`, or add dimensions"
            )
        high = value if above is None else above
        tensor = Tensor(name, "fill", "", (), (), labels, size, {}, tuple(shape), value=value, above=high)
        return self._add(tensor, parts)

    def softmax(self, name: str, labels: str, x: Tensor, *, parts: Mapping[str, int] | None = None) -> Tensor:
        """Softmax over the last dimension, in five expressions: max, difference, exponential, sum, quotient."""
        rows, spec = f"{labels}->{labels[:-1]}", f"{labels},{labels[:-1]}->{labels}"
        high = self.reduce(f"{name}_max", "max", rows, x, parts=parts)
        difference = self.apply(f"{name}_sub", "sub", spec, x, high, parts=parts)
        power = self.apply(f"{name}_exp", "exp", f"{labels}->{labels}", difference, parts=parts)
        total = self.reduce(f"{name}_sum", "sum", rows, power, parts=parts)
        return self.apply(name, "div", spec, power, total, parts=parts)

    @property
    def results(self) -> list[Tensor]:
        """The tensors that no expression reads. Raises ImporterError for an unread input, or parts of an unknown tensor."""
        read = {id(operand) for tensor in self.tensors for operand in tensor.operands}
        found = [tensor for tensor in self.tensors if id(tensor) not in read]
        idle = next((tensor for tensor in found if tensor.kind == "input"), None)
        if idle is not None:
            raise ImporterError(
                f"nothing reads input {idle.name!r} of {self.name!r}", "remove it, or read it in an expression"
            )
        for name in self._override:
            if name not in self._by_name:
                raise unknown("tensor", name, self._by_name, ImporterError)
        if not found:
            raise ImporterError(f"tensor program {self.name!r} has no expression", "add one, such as einsum or apply")
        return found

    def _expression(self, name: str, kind: Kind, function: str, spec: str, *operands: Tensor) -> Tensor:
        """Check `spec` against the operands' shapes, and make the expression, without parts."""
        labels, out = self._split(name, spec, len(operands))
        self._check_own(name, *operands)
        size = self._sizes(name, spec, list(zip(labels, (x.shape for x in operands), strict=True)))
        new = next((label for label in out if label not in size), None)
        if new is not None:
            raise ImporterError(
                f"dimension {new!r} of {name!r} ({spec}) is in no operand", f"operands have: {', '.join(size)}"
            )
        ordered = {label: size[label] for label in [*out, *(label for label in size if label not in out)]}
        is_complex = any(x.is_complex for x in operands)
        if is_complex and kind != "complexer" and (function not in ON_COMPLEX or kind == "matmul"):
            raise ImporterError(
                f"{name!r}: {kind} {function!r} takes no complex numbers", f"functions that do: {', '.join(ON_COMPLEX)}"
            )
        return Tensor(
            name, kind, function, operands, tuple(labels), out, ordered, {}, tuple(size[c] for c in out), is_complex
        )

    def _check_own(self, name: str, *operands: Tensor) -> None:
        """Raise ImporterError unless the operands of `name` are tensors of this program."""
        for operand in operands:
            if not isinstance(operand, Tensor):
                raise ImporterError(f"operand {operand!r} of {name!r} is not a tensor", "pass what `input` returned")
            if self._by_name.get(operand.name) is not operand:
                raise ImporterError(
                    f"operand {operand.name!r} of {name!r} belongs to another program", "pass tensors of this program"
                )

    def _split(self, name: str, spec: str, operands: int) -> tuple[list[str], str]:
        """Split `spec` into the letters of each operand and of the result."""
        left, arrow, out = spec.replace(" ", "").partition("->")
        labels = left.split(",")
        if not arrow or len(labels) != operands:
            raise ImporterError(
                f"{name!r} has {operands} operands, which {spec!r} does not describe", "write it as in `ik,kj->ij`"
            )
        return labels, out

    def _sizes(self, name: str, spec: str, operands: list[tuple[str, tuple[int, ...]]]) -> dict[str, int]:
        """Size of each letter. Raises ImporterError if operands disagree."""
        size: dict[str, int] = {}
        for letters in [part for part, _ in operands] + spec.replace(" ", "").replace("->", ",").split(","):
            if len(set(letters)) != len(letters) or not (letters == "" or (letters.isalpha() and letters.isascii())):
                raise ImporterError(f"{letters!r} in {spec!r} of {name!r} must be letters from a to z, each once")
        for letters, shape in operands:
            if len(letters) != len(shape):
                raise ImporterError(f"{letters!r} in {spec!r} of {name!r} names a tensor of shape {shape}")
            for letter, length in zip(letters, shape, strict=True):
                if type(length) is not int or length < 1:
                    raise ImporterError(
                        f"dimension {letter!r} of {name!r} is {length!r}", "it must be a whole number, 1 or more"
                    )
                if size.setdefault(letter, length) != length:
                    raise ImporterError(
                        f"dimension {letter!r} of {name!r} ({spec}) is both {size[letter]} and {length}"
                    )
        return size

    def _add(self, tensor: Tensor, parts: Mapping[str, int] | None) -> Tensor:
        """Add a tensor: set its parts, and those of inputs that it is the first to read."""
        name = tensor.name
        if not isinstance(name, str) or not name or "\n" in name or name in self._by_name:
            hint = "give one line of text that no other tensor has as its name"
            raise ImporterError(f"a tensor of {self.name!r} cannot be named {name!r}", hint)
        chosen = self._override.get(name, {})
        for mapping in (parts or {}, chosen):
            if not isinstance(mapping, Mapping):
                raise ImporterError(f"parts of {name!r} are {mapping!r}", 'write them as in {"i": 2}')
        given = {**(parts or {}), **chosen}
        for label, count in given.items():
            if label not in tensor.size:
                raise unknown(f"dimension of {name!r}", str(label), tensor.size, ImporterError)
            if type(count) is not int or count < 1:
                raise ImporterError(
                    f"dimension {label!r} of {name!r} cannot have {count!r} parts", "give a whole number, 1 or more"
                )
        for operand, labels in zip(tensor.operands, tensor.labels, strict=True):
            for label, count in zip(labels, operand.layout, strict=True):
                if label in tensor.size and (operand.kind != "input" or operand.parts):
                    given.setdefault(label, count)
        tensor.parts = {label: given.get(label, 1) for label in tensor.size}
        if tensor.kind == "input" and not (parts or name in self._override):
            tensor.parts = {}  # decided by the first reader
        self._check_parts(tensor)
        for operand, labels in zip(tensor.operands, tensor.labels, strict=True):
            if not operand.parts and operand.kind == "input":
                own = dict(zip(operand.out, labels, strict=True))
                operand.parts = {label: tensor.parts.get(own[label], 1) for label in operand.out}
        self.tensors.append(tensor)
        self._by_name[name] = tensor
        return tensor

    def _check_parts(self, tensor: Tensor) -> None:
        """Raise ImporterError unless all blocks of an expression are equal, and neither too many nor too large."""
        lengths = dict(tensor.size)
        if tensor.kind == "complexer":  # pairs stay together
            lengths[tensor.out[-1]] = min(lengths[tensor.out[-1]], tensor.shape[-1])
        for label, count in tensor.parts.items():
            if lengths[label] % count:
                raise ImporterError(
                    f"dimension {label!r} of {tensor.name!r}, {lengths[label]}, does not split into {count} equal parts",
                    f"use a divisor of {lengths[label]}",
                )
        operations = math.prod(tensor.parts.values())
        if operations > MAX_OPERATIONS:
            raise ImporterError(
                f"{tensor.name!r} is split into {operations} operations, more than {MAX_OPERATIONS}", "use fewer parts"
            )
        numbers = math.prod(tensor.shape) * math.prod(tensor.parts.get(c, 1) for c in tensor.reduced)
        if numbers > MAX_NUMBERS:
            raise ImporterError(
                f"the operations of {tensor.name!r} write {numbers} numbers, more than {MAX_NUMBERS}",
                "use smaller sizes",
            )
