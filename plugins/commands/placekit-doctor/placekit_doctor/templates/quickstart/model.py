"""The network that is placed. Put your own here: placekit only calls `make`.

While `make` runs, parameters take no memory, so that the network may be larger than
the memory of this computer.
"""

import torch
from placekit_torch import Step
from torch import Tensor, nn


# 1. Your network: any torch.nn.Module. This one learns which text belongs to which
#    image. Its two encoders do not wait for each other: two devices can share the work.
class Encoder(nn.Module):
    def __init__(self, embed: nn.Module, layers: int, width: int) -> None:
        super().__init__()
        self.embed = embed
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.embed(x)).mean(dim=1)


class Compare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        return self.scale * image @ text.T


class ImagesAndTexts(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.images = Encoder(nn.Linear(588, width), layers, width)
        self.texts = Encoder(nn.Embedding(32_000, width), layers, width)
        self.compare = Compare()

    def forward(self, patches: Tensor, words: Tensor) -> Tensor:
        return self.compare(self.images(patches), self.texts(words))


def make(batch: int = 32, layers: int = 4, width: int = 512) -> Step:
    """One training step: forward, backward and the optimiser's update.

    `batch=64` on the command line is `batch` here.
    """
    network = ImagesAndTexts(layers, width)
    # 2. Your inputs: only shapes and types count, not values. A tuple has the arguments
    #    of `forward`; a dict has its keyword arguments.
    patches = torch.zeros(batch, 256, 588)
    words = torch.zeros(batch, 128, dtype=torch.long)
    # 3. Your loss, which is called as loss(output, targets), and your targets.
    loss = nn.functional.cross_entropy
    targets = torch.arange(batch)
    # 4. Your optimiser: it is called with the list of parameters.
    return Step(network, (patches, words), loss, targets, torch.optim.AdamW)
    # For inference: `return network, (patches, words)`, and mode=inference on the
    # command line.
