"""Residual networks of bottleneck blocks (He et al. 2016, "Deep Residual Learning for Image Recognition").

Depths 50, 101 and 152 are those of the paper's table 1, with projections where the shape changes (option B). The stride is in
the 3x3 convolution, as in the public definitions (in the paper, in the first 1x1). Depth 200 is from He et al. 2016b,
"Identity Mappings in Deep Residual Networks", with full pre-activation: normalisation and ReLU before each convolution.
[B, 3, S, S] images to [B, classes] logits; S = 224 in the paper.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from placekit_torch.step import Step
from torch import Tensor, nn

from placekit_zoo.base import ZooImporter
from placekit_zoo.image_options import ResNetOptions

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
PRE_ACTIVATED = {200}
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, each followed by normalisation; the input is added before the last ReLU."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride > 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        residual = F.relu(self.bn1(self.conv1(x)))
        residual = F.relu(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        return F.relu(residual + (x if self.downsample is None else self.downsample(x)))


class PreActivatedBottleneck(nn.Module):
    """A bottleneck with normalisation and ReLU before each convolution, and nothing after the sum (He et al. 2016b, figure 4 e).

    A projection reads the input after the first normalisation and ReLU.
    """

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        projects = stride > 1 or inputs != outputs
        self.downsample = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if projects else None

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.bn1(x))
        residual: Tensor = self.conv1(activated)
        residual = self.conv2(F.relu(self.bn2(residual)))
        residual = self.conv3(F.relu(self.bn3(residual)))
        return residual + (x if self.downsample is None else self.downsample(activated))


class ResNet(nn.Module):
    """The network; `blocks` are the numbers of bottleneck blocks in the four stages, by default those for `depth`."""

    def __init__(
        self, depth: int = 50, classes: int = 1000, width: float = 1.0, blocks: tuple[int, ...] | None = None
    ) -> None:
        super().__init__()
        pre_activated = depth in PRE_ACTIVATED
        block = PreActivatedBottleneck if pre_activated else Bottleneck
        inner = max(1, round(64 * width))
        self.conv1 = nn.Conv2d(3, inner, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels, stages = inner, []
        for stage, count in enumerate(blocks or BLOCKS[depth], 1):
            layers: list[nn.Module] = []
            for i in range(count):
                layers.append(block(channels, inner, stride=2 if stage > 1 and i == 0 else 1))
                channels = EXPANSION * inner
            stages.append(nn.Sequential(*layers))
            inner *= 2
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.bn = nn.BatchNorm2d(channels) if pre_activated else None
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        if self.bn is not None:
            x = F.relu(self.bn(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))  # type: ignore[no-any-return]


class ResNetImporter(ZooImporter):
    """Importer `resnet`."""

    name = "resnet"
    options_class = ResNetOptions
    optimizer_settings = {  # noqa: RUF012 (a constant)
        "sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4},  # section 3.4
    }

    def step(self) -> Step:
        """One step on random images."""
        o: ResNetOptions = self.options
        images, labels = torch.randn(o.batch, 3, o.image_size, o.image_size), torch.randint(0, o.classes, (o.batch,))
        module = ResNet(o.depth, o.classes, o.width, o.blocks)
        return Step(module, images, F.cross_entropy, labels, self.make_optimizer)
