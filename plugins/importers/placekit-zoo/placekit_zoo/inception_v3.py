"""Inception-V3 (Szegedy et al. 2016, "Rethinking the Inception Architecture for Computer Vision", arXiv 1512.00567).

The architecture of table 1 with the modules of figures 5, 6 and 7 and the grid reduction of figure 10; module names and
details that the paper leaves open (channel counts inside the modules, pooling branches, epsilon of batch normalisation)
are those of the widely used public definitions. [B, 3, S, S] images to [B, classes] logits; S = 299 in the paper.
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


class InceptionA(nn.Module):
    """Figure 5: the 5x5 convolution next to two 3x3, on the 35x35 grid."""

    def __init__(self, inputs: int, pool: int, c: Scale) -> None:
        super().__init__()
        self.branch1x1 = ConvNorm(inputs, c(64), 1)
        self.branch5x5_1 = ConvNorm(inputs, c(48), 1)
        self.branch5x5_2 = ConvNorm(c(48), c(64), 5, same=True)
        self.branch3x3dbl_1 = ConvNorm(inputs, c(64), 1)
        self.branch3x3dbl_2 = ConvNorm(c(64), c(96), 3, same=True)
        self.branch3x3dbl_3 = ConvNorm(c(96), c(96), 3, same=True)
        self.branch_pool = ConvNorm(inputs, pool, 1)
        self.channels = 2 * c(64) + c(96) + pool

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(
            [
                self.branch1x1(x),
                self.branch5x5_2(self.branch5x5_1(x)),
                self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x))),
                self.branch_pool(F.avg_pool2d(x, 3, stride=1, padding=1)),
            ],
            1,
        )


class InceptionB(nn.Module):
    """Figure 10: reduction of the grid from 35x35 to 17x17."""

    def __init__(self, inputs: int, c: Scale) -> None:
        super().__init__()
        self.branch3x3 = ConvNorm(inputs, c(384), 3, stride=2)
        self.branch3x3dbl_1 = ConvNorm(inputs, c(64), 1)
        self.branch3x3dbl_2 = ConvNorm(c(64), c(96), 3, same=True)
        self.branch3x3dbl_3 = ConvNorm(c(96), c(96), 3, stride=2)
        self.channels = c(384) + c(96) + inputs

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, F.max_pool2d(x, 3, stride=2)], 1)


class InceptionC(nn.Module):
    """Figure 6: convolutions factorised into 1x7 and 7x1, on the 17x17 grid."""

    def __init__(self, inputs: int, inner: int, c: Scale) -> None:
        super().__init__()
        row, column = (1, 7), (7, 1)
        self.branch1x1 = ConvNorm(inputs, c(192), 1)
        self.branch7x7_1 = ConvNorm(inputs, inner, 1)
        self.branch7x7_2 = ConvNorm(inner, inner, row, same=True)
        self.branch7x7_3 = ConvNorm(inner, c(192), column, same=True)
        self.branch7x7dbl_1 = ConvNorm(inputs, inner, 1)
        self.branch7x7dbl_2 = ConvNorm(inner, inner, column, same=True)
        self.branch7x7dbl_3 = ConvNorm(inner, inner, row, same=True)
        self.branch7x7dbl_4 = ConvNorm(inner, inner, column, same=True)
        self.branch7x7dbl_5 = ConvNorm(inner, c(192), row, same=True)
        self.branch_pool = ConvNorm(inputs, c(192), 1)
        self.channels = 4 * c(192)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        return torch.cat(
            [
                self.branch1x1(x),
                self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x))),
                self.branch7x7dbl_5(self.branch7x7dbl_4(double)),
                self.branch_pool(F.avg_pool2d(x, 3, stride=1, padding=1)),
            ],
            1,
        )


class InceptionD(nn.Module):
    """Reduction of the grid from 17x17 to 8x8."""

    def __init__(self, inputs: int, c: Scale) -> None:
        super().__init__()
        self.branch3x3_1 = ConvNorm(inputs, c(192), 1)
        self.branch3x3_2 = ConvNorm(c(192), c(320), 3, stride=2)
        self.branch7x7x3_1 = ConvNorm(inputs, c(192), 1)
        self.branch7x7x3_2 = ConvNorm(c(192), c(192), (1, 7), same=True)
        self.branch7x7x3_3 = ConvNorm(c(192), c(192), (7, 1), same=True)
        self.branch7x7x3_4 = ConvNorm(c(192), c(192), 3, stride=2)
        self.channels = c(320) + c(192) + inputs

    def forward(self, x: Tensor) -> Tensor:
        long = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat([self.branch3x3_2(self.branch3x3_1(x)), long, F.max_pool2d(x, 3, stride=2)], 1)


class InceptionE(nn.Module):
    """Figure 7: expanded filter banks, on the 8x8 grid."""

    def __init__(self, inputs: int, c: Scale) -> None:
        super().__init__()
        row, column = (1, 3), (3, 1)
        self.branch1x1 = ConvNorm(inputs, c(320), 1)
        self.branch3x3_1 = ConvNorm(inputs, c(384), 1)
        self.branch3x3_2a = ConvNorm(c(384), c(384), row, same=True)
        self.branch3x3_2b = ConvNorm(c(384), c(384), column, same=True)
        self.branch3x3dbl_1 = ConvNorm(inputs, c(448), 1)
        self.branch3x3dbl_2 = ConvNorm(c(448), c(384), 3, same=True)
        self.branch3x3dbl_3a = ConvNorm(c(384), c(384), row, same=True)
        self.branch3x3dbl_3b = ConvNorm(c(384), c(384), column, same=True)
        self.branch_pool = ConvNorm(inputs, c(192), 1)
        self.channels = c(320) + 4 * c(384) + c(192)

    def forward(self, x: Tensor) -> Tensor:
        single = self.branch3x3_1(x)
        double = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        return torch.cat(
            [
                self.branch1x1(x),
                torch.cat([self.branch3x3_2a(single), self.branch3x3_2b(single)], 1),
                torch.cat([self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double)], 1),
                self.branch_pool(F.avg_pool2d(x, 3, stride=1, padding=1)),
            ],
            1,
        )


class Auxiliary(nn.Module):
    """The auxiliary classifier on top of the last 17x17 module (section 4)."""

    def __init__(self, inputs: int, classes: int, c: Scale) -> None:
        super().__init__()
        self.conv0 = ConvNorm(inputs, c(128), 1)
        self.conv1 = ConvNorm(c(128), c(768), 5)
        self.fc = nn.Linear(c(768), classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(self.conv0(F.avg_pool2d(x, 5, stride=3)))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))  # type: ignore[no-any-return]


class InceptionV3(nn.Module):
    """The network; in training with `aux` it returns the pair (logits, auxiliary logits)."""

    def __init__(self, classes: int = 1000, aux: bool = False, dropout: float = 0.5, width: float = 1.0) -> None:
        super().__init__()
        c = Scale(width)
        self.Conv2d_1a_3x3 = ConvNorm(3, c(32), 3, stride=2)
        self.Conv2d_2a_3x3 = ConvNorm(c(32), c(32), 3)
        self.Conv2d_2b_3x3 = ConvNorm(c(32), c(64), 3, same=True)
        self.maxpool1 = nn.MaxPool2d(3, stride=2)
        self.Conv2d_3b_1x1 = ConvNorm(c(64), c(80), 1)
        self.Conv2d_4a_3x3 = ConvNorm(c(80), c(192), 3)
        self.maxpool2 = nn.MaxPool2d(3, stride=2)
        self.Mixed_5b = InceptionA(c(192), c(32), c)
        self.Mixed_5c = InceptionA(self.Mixed_5b.channels, c(64), c)
        self.Mixed_5d = InceptionA(self.Mixed_5c.channels, c(64), c)
        self.Mixed_6a = InceptionB(self.Mixed_5d.channels, c)
        self.Mixed_6b = InceptionC(self.Mixed_6a.channels, c(128), c)
        self.Mixed_6c = InceptionC(self.Mixed_6b.channels, c(160), c)
        self.Mixed_6d = InceptionC(self.Mixed_6c.channels, c(160), c)
        self.Mixed_6e = InceptionC(self.Mixed_6d.channels, c(192), c)
        self.AuxLogits = Auxiliary(self.Mixed_6e.channels, classes, c) if aux else None
        self.Mixed_7a = InceptionD(self.Mixed_6e.channels, c)
        self.Mixed_7b = InceptionE(self.Mixed_7a.channels, c)
        self.Mixed_7c = InceptionE(self.Mixed_7b.channels, c)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(self.Mixed_7c.channels, classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.maxpool1(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = self.maxpool2(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        x = self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x)))
        x = self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(self.Mixed_6a(x)))))
        aux = self.AuxLogits(x) if self.AuxLogits is not None and self.training else None
        x = self.Mixed_7c(self.Mixed_7b(self.Mixed_7a(x)))
        logits = self.fc(torch.flatten(self.dropout(self.avgpool(x)), 1))
        return logits if aux is None else (logits, aux)


def loss(output: Tensor | tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Cross-entropy, plus 0.4 times that of the auxiliary classifier if there is one."""
    if isinstance(output, tuple):
        return F.cross_entropy(output[0], target) + 0.4 * F.cross_entropy(output[1], target)
    return F.cross_entropy(output, target)


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
        return Step(InceptionV3(o.classes, o.aux, o.dropout, o.width), images, loss, labels, self.make_optimizer)
