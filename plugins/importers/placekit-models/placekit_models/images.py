"""Networks of timm and torchvision: `timm:NAME`, `torchvision:NAME`, with random weights."""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import Any

import torch
from placekit_torch import Step

from placekit_core import ImporterError, unknown
from placekit_models.extras import library
from placekit_models.network import Mode, Network
from placekit_models.options import Asked

_KINDS = ("segmentation", "video", "optical_flow", "detection", "quantization")
"""Modules of torchvision.models whose networks are not image classifiers."""
_CLASSES = 1000
_FRAMES = 16
"""Frames of a video, as in the training of torchvision's networks."""


def network(asked: Asked, source: str) -> Network:
    """The network `timm:NAME` or `torchvision:NAME`. Raises ImporterError."""
    for option, value in (("context", asked.context), ("weights", asked.weights)):
        if value is not None:
            raise ImporterError(f"{source}:{asked.name} has no {option}", f"leave out {option}=")
    if asked.mode in ("prefill", "decode"):
        raise ImporterError(
            f"{source}:{asked.name} generates no text, so it has no mode={asked.mode}", "use mode=inference or train"
        )
    name, mode = asked.name, asked.mode or "inference"
    if source == "timm":
        timm = library("timm", source)
        if not timm.is_model(name):
            raise unknown("model of timm", name, timm.list_models(), ImporterError, "timm.list_models()")
        return Network(name, mode, functools.partial(_timm, timm, asked, mode))
    models = library("torchvision", source).models
    if name not in models.list_models():
        raise unknown(
            "model of torchvision", name, models.list_models(), ImporterError, "torchvision.models.list_models()"
        )
    kind = next((k for k in _KINDS if name in models.list_models(module=getattr(models, k))), "classification")
    if kind == "detection":
        raise ImporterError(
            f"{name} detects objects: how many boxes torchvision::nms and its thresholds keep depends on data, so that the"
            " shapes after them are not fixed",
            "place its backbone: model=FILE.py:FUNCTION, where the function returns (model.backbone, images)",
        )
    if kind == "quantization":
        raise ImporterError(
            f"{name} runs kernels of 8 bits that only CPUs have", f"give torchvision:{name.removeprefix('quantized_')}"
        )
    if mode == "train" and kind in ("segmentation", "optical_flow"):
        raise ImporterError(
            f"{name} is not a classifier: placekit cannot make up its targets",
            "mode=inference needs none; to train it, write a function with your loss: model=FILE.py:FUNCTION",
        )
    return Network(name, mode, functools.partial(_torchvision, models, kind, asked, mode))


def _timm(timm: Any, asked: Asked, mode: Mode) -> Step:
    model = timm.create_model(asked.name, pretrained=False, **_size(asked, timm))
    if mode == "train" and not model.num_classes:
        warnings.warn(f"{asked.name} has no classifier: it is trained with one of {_CLASSES:,} classes", stacklevel=2)
        model = timm.create_model(asked.name, pretrained=False, num_classes=_CLASSES, **_size(asked, timm))
    channels, height, width = model.pretrained_cfg["input_size"]
    if asked.image is not None:
        height = width = asked.image
    return _step(model, (asked.batch, channels, height, width), model.num_classes, asked, mode)


def _size(asked: Asked, timm: Any) -> dict[str, int]:
    """The argument with the size of images, for networks whose constructor needs it."""
    takes = inspect.signature(timm.model_entrypoint(asked.name)).parameters
    if asked.image is None or not timm.list_models(asked.name) or "kwargs" not in takes:
        return {}
    return {"img_size": asked.image} if _has_positions(timm, asked.name) else {}


@functools.cache
def _has_positions(timm: Any, name: str) -> bool:
    """Whether the network is built for one size of images, as vision transformers are."""
    with torch.device("meta"):
        return hasattr(timm.create_model(name, pretrained=False), "patch_embed")


def _torchvision(models: Any, kind: str, asked: Asked, mode: Mode) -> Step:
    weights = models.get_model_weights(asked.name)
    best = next(iter(weights), None)  # it has the size of images; its weights are not loaded
    preset = best.transforms() if best is not None else None
    sizes = [getattr(preset, each, None) for each in ("crop_size", "resize_size")]
    size = asked.image or next((each[0] for each in sizes if each), 224)
    options: dict[str, Any] = {"image_size": size} if asked.image and asked.name.startswith("vit_") else {}
    if asked.name in ("inception_v3", "googlenet"):
        options["init_weights"] = False  # else they warn that this will be the default
    if kind == "segmentation":
        options["weights_backbone"] = None  # else it would be downloaded
    model = models.get_model(asked.name, weights=None, **options)
    classes = len(best.meta.get("categories", ())) if best is not None else 1000
    frames = (_FRAMES,) if kind == "video" else ()
    step = _step(model, (asked.batch, 3, *frames, size, size), classes, asked, mode)
    if kind == "optical_flow":
        step.inputs = (step.inputs, step.inputs.clone())
    return step


def _step(model: Any, shape: tuple[int, ...], classes: int, asked: Asked, mode: Mode) -> Step:
    """Inference, or a training step with cross-entropy over the classes and SGD with momentum."""
    dtype = getattr(torch, asked.dtype or "float32")
    model = model.to(dtype)
    images = torch.randn(shape, dtype=dtype)
    if mode == "inference":
        return Step(model, images)
    targets = torch.randint(0, classes, (asked.batch,))
    return Step(model, images, _cross_entropy, targets, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


def _cross_entropy(output: Any, targets: torch.Tensor) -> torch.Tensor:
    """The loss of the first output, plus 0.3 times that of auxiliary outputs, as in the papers of Inception and GoogLeNet."""
    if isinstance(output, torch.Tensor):
        return torch.nn.functional.cross_entropy(output, targets)
    first, *others = [o for o in output if o is not None]
    loss = torch.nn.functional.cross_entropy(first, targets)
    for other in others:
        loss = loss + 0.3 * torch.nn.functional.cross_entropy(other, targets)
    return loss
