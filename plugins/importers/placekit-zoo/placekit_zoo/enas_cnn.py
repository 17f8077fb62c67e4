"""Image classifiers of ENAS's micro search space (Pham et al. 2018, arXiv 1802.03268, section 2.4).

N convolution cells, a reduction cell, N convolution cells, a reduction cell, N convolution cells. The search is for the nodes
of the two kinds of cells. States 0 (the older) and 1 of a cell are the outputs of the two cells before it. Each node adds the
results of two operations on two states; the sum is a new state. The cell's output are the nodes that no other node reads,
joined along the channels.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from placekit_torch.step import Step
from torch import Tensor, nn

from placekit_zoo.base import OPTIMIZERS, ZooImporter
from placekit_zoo.enas import CellNode, SampledCnn
from placekit_zoo.family_options import PlacetoCifar10Options
from placekit_zoo.nasnet import FactorizedReduction, Pair, Squeeze, operation

INPUTS = 2
"""Number of states of a cell before its nodes."""


class Cell(nn.Module):
    """One cell: [B, channels, S, S] tensors of the two cells before it to [B, outputs, S / stride, S / stride].

    `inputs` are channels and grid of both tensors; the older may have twice the grid of the younger. 1x1 convolutions
    bring them to `width` channels.
    """

    def __init__(self, nodes: list[CellNode], inputs: list[tuple[int, int]], width: int, stride: int) -> None:
        super().__init__()
        self.reads = [(left, right) for _, left, _, right in nodes]
        read = {state for pair in self.reads for state in pair}
        self.loose = [i for i in range(INPUTS, INPUTS + len(nodes)) if i not in read]
        size = inputs[1][1]
        self.prepare = nn.ModuleDict(
            {
                str(i): (FactorizedReduction if grid > size else Squeeze)(channels, width)
                for i, (channels, grid) in enumerate(inputs)
                if i in read
            }
        )

        def made(kind: str, state: int) -> nn.Module:
            if state < INPUTS and stride > 1 and kind == "identity":
                return FactorizedReduction(width, width)
            return operation(kind, width, width, stride if state < INPUTS else 1)

        self.nodes = nn.ModuleList(Pair(made(a, left), made(b, right)) for a, left, b, right in nodes)

    def forward(self, older: Tensor, younger: Tensor) -> Tensor:
        states = [self.prepare[str(i)](x) if str(i) in self.prepare else x for i, x in enumerate((older, younger))]
        for node, (left, right) in zip(self.nodes, self.reads, strict=True):
            states.append(node(states[left], states[right]))
        return torch.cat([states[i] for i in self.loose], 1)


class EnasCnn(nn.Module):
    """[B, 3, S, S] images to [B, classes] logits; the channels of a cell's states double at each reduction."""

    def __init__(self, sampled: SampledCnn, image_size: int, classes: int) -> None:
        super().__init__()
        width, stem = sampled["width"], 3 * sampled["width"]
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem))
        inputs = [(stem, image_size)] * INPUTS
        cells = []
        for kind in "r".join(3 * ["c" * sampled["cells"]]):
            stride = 2 if kind == "r" else 1
            width *= stride
            cell = Cell(sampled["reduction" if kind == "r" else "convolution"], inputs, width, stride)
            inputs = [inputs[1], (width * len(cell.loose), -(-inputs[1][1] // stride))]
            cells.append(cell)
        self.cells = nn.ModuleList(cells)
        self.classifier = nn.Linear(inputs[1][0], classes)

    def forward(self, images: Tensor) -> Tensor:
        older = younger = self.stem(images)
        for cell in self.cells:
            older, younger = younger, cell(older, younger)
        return self.classifier(F.relu(younger).mean((2, 3)))  # type: ignore[no-any-return]


def step(o: PlacetoCifar10Options, sampled: SampledCnn) -> Step:
    """Cross-entropy of random images against random classes."""
    images = torch.randn(o.batch, 3, o.image_size, o.image_size)
    targets = torch.randint(0, o.classes, (o.batch,))
    optimizer = partial(OPTIMIZERS[o.optimizer], **ZooImporter.optimizer_settings.get(o.optimizer, {}))
    return Step(EnasCnn(sampled, o.image_size, o.classes), images, F.cross_entropy, targets, optimizer)
