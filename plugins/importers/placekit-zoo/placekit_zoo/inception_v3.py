"""Inception-V3 (Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", arXiv 1512.00567).

The architecture of table 1 with the modules of figures 5, 6 and 7 and the grid reduction of figure 10. Names of modules, and
details that the paper leaves open (channel counts inside the modules, pooling branches, epsilon of batch normalisation), are
those of the widely used public definitions. Each branch is one submodule (`Mixed_5b.branch5x5`), including its pooling.
[B, 3, S, S] images to [B, classes] logits; S = 299 in the paper.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from placekit_torch.step import Step
from torch import Tensor, nn

from placekit_zoo.base import ZooImporter
from placekit_zoo.image_options import InceptionV3Options


class ConvNorm(nn.Module):
    """Convolution without bias, batch normalisation, ReLU; `same` pads so that the grid keeps its size at stride 1."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int = 1, same: bool = False
    ) -> None:
        super().__init__()
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (rows // 2, columns // 2) if same else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class Scale:
    """Channel counts times a factor, at least 1."""

    def __init__(self, width: float) -> None:
        self.width = width

    def __call__(self, channels: int) -> int:
        return max(1, round(channels * self.width))


class Branches(nn.Module):
    """Modules side by side on one input; their outputs [B, C_i, H, W], concatenated, have `channels` channels."""

    def __init__(self, channels: int, **branches: nn.Module) -> None:
        super().__init__()
        self.channels = channels
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.children()], 1)


def pooled(inputs: int, outputs: int) -> nn.Sequential:
    """The pooling branch of the modules that keep the grid."""
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), ConvNorm(inputs, outputs, 1))


def inception_a(inputs: int, pool: int, c: Scale) -> Branches:
    """Figure 5: the 5x5 convolution next to two 3x3, on the 35x35 grid."""
    double = [
        ConvNorm(inputs, c(64), 1),
        ConvNorm(c(64), c(96), 3, same=True),
        ConvNorm(c(96), c(96), 3, same=True),
    ]
    return Branches(
        2 * c(64) + c(96) + pool,
        branch1x1=ConvNorm(inputs, c(64), 1),
        branch5x5=nn.Sequential(ConvNorm(inputs, c(48), 1), ConvNorm(c(48), c(64), 5, same=True)),
        branch3x3dbl=nn.Sequential(*double),
        branch_pool=pooled(inputs, pool),
    )


def inception_b(inputs: int, c: Scale) -> Branches:
    """Figure 10: reduction of the grid from 35x35 to 17x17."""
    double = [
        ConvNorm(inputs, c(64), 1),
        ConvNorm(c(64), c(96), 3, same=True),
        ConvNorm(c(96), c(96), 3, stride=2),
    ]
    return Branches(
        c(384) + c(96) + inputs,
        branch3x3=ConvNorm(inputs, c(384), 3, stride=2),
        branch3x3dbl=nn.Sequential(*double),
        branch_pool=nn.MaxPool2d(3, stride=2),
    )


def inception_c(inputs: int, inner: int, c: Scale) -> Branches:
    """Figure 6: convolutions factorised into 1x7 and 7x1, on the 17x17 grid."""
    row, column = (1, 7), (7, 1)
    single = [
        ConvNorm(inputs, inner, 1),
        ConvNorm(inner, inner, row, same=True),
        ConvNorm(inner, c(192), column, same=True),
    ]
    double = [
        ConvNorm(inputs, inner, 1),
        ConvNorm(inner, inner, column, same=True),
        ConvNorm(inner, inner, row, same=True),
        ConvNorm(inner, inner, column, same=True),
        ConvNorm(inner, c(192), row, same=True),
    ]
    return Branches(
        4 * c(192),
        branch1x1=ConvNorm(inputs, c(192), 1),
        branch7x7=nn.Sequential(*single),
        branch7x7dbl=nn.Sequential(*double),
        branch_pool=pooled(inputs, c(192)),
    )


def inception_d(inputs: int, c: Scale) -> Branches:
    """Reduction of the grid from 17x17 to 8x8."""
    long = [
        ConvNorm(inputs, c(192), 1),
        ConvNorm(c(192), c(192), (1, 7), same=True),
        ConvNorm(c(192), c(192), (7, 1), same=True),
        ConvNorm(c(192), c(192), 3, stride=2),
    ]
    return Branches(
        c(320) + c(192) + inputs,
        branch3x3=nn.Sequential(ConvNorm(inputs, c(192), 1), ConvNorm(c(192), c(320), 3, stride=2)),
        branch7x7x3=nn.Sequential(*long),
        branch_pool=nn.MaxPool2d(3, stride=2),
    )


def expanded(channels: int) -> Branches:
    """The 1x3 and 3x1 convolutions in which a branch of figure 7 ends."""
    row, column = ConvNorm(channels, channels, (1, 3), same=True), ConvNorm(channels, channels, (3, 1), same=True)
    return Branches(2 * channels, row=row, column=column)


def inception_e(inputs: int, c: Scale) -> Branches:
    """Figure 7: expanded filter banks, on the 8x8 grid."""
    double = [ConvNorm(inputs, c(448), 1), ConvNorm(c(448), c(384), 3, same=True), expanded(c(384))]
    return Branches(
        c(320) + 4 * c(384) + c(192),
        branch1x1=ConvNorm(inputs, c(320), 1),
        branch3x3=nn.Sequential(ConvNorm(inputs, c(384), 1), expanded(c(384))),
        branch3x3dbl=nn.Sequential(*double),
        branch_pool=pooled(inputs, c(192)),
    )


class InceptionV3(nn.Module):
    """The network."""

    def __init__(self, classes: int = 1000, dropout: float = 0.5, width: float = 1.0) -> None:
        super().__init__()
        c = Scale(width)
        self.Conv2d_1a_3x3 = ConvNorm(3, c(32), 3, stride=2)
        self.Conv2d_2a_3x3 = ConvNorm(c(32), c(32), 3)
        self.Conv2d_2b_3x3 = ConvNorm(c(32), c(64), 3, same=True)
        self.maxpool1 = nn.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1 = ConvNorm(c(64), c(80), 1)
        self.Conv2d_4a_3x3 = ConvNorm(c(80), c(192), 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2)
        self.Mixed_5b = inception_a(c(192), c(32), c)
        self.Mixed_5c = inception_a(self.Mixed_5b.channels, c(64), c)
        self.Mixed_5d = inception_a(self.Mixed_5c.channels, c(64), c)
        self.Mixed_6a = inception_b(self.Mixed_5d.channels, c)
        self.Mixed_6b = inception_c(self.Mixed_6a.channels, c(128), c)
        self.Mixed_6c = inception_c(self.Mixed_6b.channels, c(160), c)
        self.Mixed_6d = inception_c(self.Mixed_6c.channels, c(160), c)
        self.Mixed_6e = inception_c(self.Mixed_6d.channels, c(192), c)
        self.Mixed_7a = inception_d(self.Mixed_6e.channels, c)
        self.Mixed_7b = inception_e(self.Mixed_7a.channels, c)
        self.Mixed_7c = inception_e(self.Mixed_7b.channels, c)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(self.Mixed_7c.channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool1(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        return self.fc(torch.flatten(self.dropout(self.avgpool(x)), 1))  # type: ignore[no-any-return]


class InceptionV3Importer(ZooImporter):
    """Importer `inception_v3`."""

    name = "inception_v3"
    options_class = InceptionV3Options
    optimizer_settings = {  # noqa: RUF012 (a constant)
        "rmsprop": {"lr": 0.045, "alpha": 0.9, "eps": 1.0},  # section 8
        "sgd": {"lr": 0.045, "momentum": 0.9},  # section 8, the earlier experiments
    }

    def step(self) -> Step:
        """One step on random images."""
        o: InceptionV3Options = self.options
        images, labels = torch.randn(o.batch, 3, o.image_size, o.image_size), torch.randint(0, o.classes, (o.batch,))
        return Step(InceptionV3(o.classes, o.dropout, o.width), images, F.cross_entropy, labels, self.make_optimizer)
