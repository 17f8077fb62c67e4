"""NASNet-A (Zoph et al. 2018, "Learning Transferable Architectures for Scalable Image Recognition", arXiv 1707.07012).

The cells of NASNet-A in the stack for ImageNet: a convolution, two reduction cells as the stem, then three stages of N
normal cells with a reduction cell between them. Details that the paper leaves open (channels of the stem, how a cell's inputs
are brought to the same shape, that the first cell after a reduction skips the reduction's input) follow the authors'
published definition of the large network, 6 @ 4032. [B, 3, S, S] images to [B, classes] logits; S = 331 in the paper.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from placekit_torch.step import Step
from torch import Tensor, nn

from placekit_zoo.base import ZooImporter
from placekit_zoo.image_options import NasNetOptions
from placekit_zoo.inception_v3 import Scale

# A cell is a list of pairs (operation, state, operation, state); the sum of the two results is a new state. States 0 and 1 are
# the outputs of the last cell and of the cell before it. The cell's output concatenates the states in OUTPUTS.
Pairs = tuple[tuple[str, int, str, int], ...]
States = tuple[int, ...]
NORMAL: Pairs = (
    ("separable5", 0, "separable3", 1),
    ("separable5", 1, "separable3", 1),
    ("average", 0, "identity", 1),
    ("average", 1, "average", 1),
    ("separable3", 0, "identity", 0),
)
NORMAL_OUTPUTS: States = (1, 2, 3, 4, 5, 6)
REDUCTION: Pairs = (
    ("separable5", 0, "separable7", 1),
    ("maximum", 0, "separable7", 1),
    ("average", 0, "separable5", 1),
    ("identity", 3, "average", 2),
    ("separable3", 2, "maximum", 0),
)
REDUCTION_OUTPUTS: States = (3, 4, 5, 6)
EPSILON = 0.001


class Separable(nn.Module):
    """ReLU, separable convolution and normalisation, twice; only the first has the stride."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.depthwise1 = nn.Conv2d(inputs, inputs, kernel, stride, kernel // 2, groups=inputs, bias=False)
        self.pointwise1 = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs, eps=EPSILON)
        self.depthwise2 = nn.Conv2d(outputs, outputs, kernel, 1, kernel // 2, groups=outputs, bias=False)
        self.pointwise2 = nn.Conv2d(outputs, outputs, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.pointwise1(self.depthwise1(F.relu(x))))
        return self.bn2(self.pointwise2(self.depthwise2(F.relu(x))))  # type: ignore[no-any-return]


class Squeeze(nn.Module):
    """ReLU, 1x1 convolution and normalisation: brings a cell's input to the cell's channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(F.relu(x)))  # type: ignore[no-any-return]


class FactorizedReduction(nn.Module):
    """Halves the grid and brings the input to the cell's channels: one half from the even pixels, one from the odd."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even = nn.Sequential(nn.AvgPool2d(1, stride=2), nn.Conv2d(inputs, outputs // 2, 1, bias=False))
        self.odd = nn.Sequential(nn.AvgPool2d(1, stride=2), nn.Conv2d(inputs, outputs // 2, 1, bias=False))
        self.bn = nn.BatchNorm2d(outputs, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        shifted = F.pad(x, (-1, 1, -1, 1))  # up and left by one, zeros at the ends
        return self.bn(torch.cat([self.even(x), self.odd(shifted)], 1))  # type: ignore[no-any-return]


def operation(kind: str, inputs: int, outputs: int, stride: int) -> nn.Module:
    """One operation of a cell."""
    if kind == "identity":
        return nn.Identity()
    if kind == "average":
        return nn.AvgPool2d(3, stride, 1, count_include_pad=False)
    if kind == "maximum":
        return nn.MaxPool2d(3, stride, 1)
    return Separable(inputs, outputs, int(kind.removeprefix("separable")), stride)


class Pair(nn.Module):
    """The sum of two operations."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) + self.right(b)  # type: ignore[no-any-return]


class Cell(nn.Module):
    """A normal cell, or a reduction cell, which halves the grid; `x` is the last cell's output, `previous` the one before.

    `previous_inputs` is the number of channels of `previous`; None: the cell reads `x` instead. With `halve`, `previous` has
    twice the grid of `x`.
    """

    def __init__(self, inputs: int, previous_inputs: int | None, filters: int, *, reduction: bool, halve: bool) -> None:
        super().__init__()
        pairs, self.outputs = (REDUCTION, REDUCTION_OUTPUTS) if reduction else (NORMAL, NORMAL_OUTPUTS)
        self.sources = tuple((left, right) for _, left, _, right in pairs)
        self.channels = filters * len(self.outputs)
        self.squeeze = Squeeze(inputs, filters)
        self.previous: nn.Module | None = None
        if previous_inputs is not None:
            self.previous = (FactorizedReduction if halve else Squeeze)(previous_inputs, filters)

        def made(kind: str, state: int) -> nn.Module:
            channels = inputs if state == 1 and previous_inputs is None else filters
            return operation(kind, channels, filters, 2 if reduction and state < 2 else 1)

        for i, (left, a, right, b) in enumerate(pairs):
            self.add_module(f"pair_{i}", Pair(made(left, a), made(right, b)))

    def forward(self, x: Tensor, previous: Tensor | None) -> Tensor:
        first = self.squeeze(x)
        states = [first, x if self.previous is None else self.previous(previous)]
        for i, (a, b) in enumerate(self.sources):
            states.append(self.get_submodule(f"pair_{i}")(states[a], states[b]))
        return torch.cat([states[i] for i in self.outputs], 1)


class NasNet(nn.Module):
    """The network; the paper's N @ 4032 for `repeats` N and `width` 1."""

    def __init__(self, repeats: int = 6, classes: int = 1000, dropout: float = 0.5, width: float = 1.0) -> None:
        super().__init__()
        c = Scale(width)
        filters = 4 * c(42)
        self.conv0 = nn.Conv2d(3, c(96), 3, stride=2, bias=False)
        self.bn0 = nn.BatchNorm2d(c(96), eps=EPSILON)
        plan = [("stem_0", filters // 4), ("stem_1", filters // 2)]
        for stage in range(3):
            plan += [(f"reduction_{stage - 1}", filters << stage)] if stage else []
            plan += [(f"cell_{stage * repeats + i}", filters << stage) for i in range(repeats)]
        self.order = tuple(name for name, _ in plan)
        channels, previous, halve = c(96), None, False
        for name, cell_filters in plan:
            reduction = not name.startswith("cell")
            cell = Cell(channels, previous, cell_filters, reduction=reduction, halve=halve)
            self.add_module(name, cell)
            previous = previous if name.startswith("reduction") else channels
            channels, halve = cell.channels, reduction
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        x, previous = self.bn0(self.conv0(images)), None
        for name in self.order:
            output = self.get_submodule(name)(x, previous)
            # the cell after a reduction gets the reduction's own `previous`, not its `x`
            previous = previous if name.startswith("reduction") else x
            x = output
        return self.fc(self.dropout(torch.flatten(self.avgpool(F.relu(x)), 1)))  # type: ignore[no-any-return]


class NasNetImporter(ZooImporter):
    """Importer `nasnet`."""

    name = "nasnet"
    options_class = NasNetOptions
    optimizer_settings = {  # noqa: RUF012 (a constant)
        "rmsprop": {"lr": 0.015, "alpha": 0.9, "eps": 1.0},  # as for Inception-V3; rate of the published code
        "sgd": {"lr": 0.015, "momentum": 0.9},
    }

    def step(self) -> Step:
        """One step on random images."""
        o: NasNetOptions = self.options
        images, labels = torch.randn(o.batch, 3, o.image_size, o.image_size), torch.randint(0, o.classes, (o.batch,))
        module = NasNet(o.repeats, o.classes, o.dropout, o.width)
        return Step(module, images, F.cross_entropy, labels, self.make_optimizer)
