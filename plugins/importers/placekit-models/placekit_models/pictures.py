"""Pictures for models of transformers: runs the model's own image processor, and counts the tokens of a picture."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from placekit_torch.error_lines import first_line

from placekit_core import ImporterError
from placekit_models import configurations


def takes_pictures(cls: Any) -> bool:
    """Whether a class generates text from text and pictures."""
    takes = inspect.signature(cls.forward).parameters
    return bool(cls.can_generate()) and "pixel_values" in takes and "input_ids" in takes


def needs_pictures(cls: Any) -> bool:
    """Whether such a class cannot run on text alone."""
    return takes_pictures(cls) and bool(cls.main_input_name == "pixel_values")


def size_of(config: Any) -> Any:
    """The size of images in a configuration, or in its vision encoder's; None without one."""
    holder = holder_of_size(config)
    return None if holder is None else holder.image_size


def holder_of_size(config: Any) -> Any:
    """The part of a configuration that has `image_size`, or None."""
    inner = [getattr(config, k, None) for k in ("vision_config", "backbone_config", "encoder")]
    backbone = getattr(inner[0], "backbone_config", None)
    return next((c for c in (config, *inner, backbone) if getattr(c, "image_size", None)), None)


def picture(config: Any, cls: Any, name: str, side: int, batch: int) -> dict[str, torch.Tensor]:
    """The image processor's output for a random picture of `side` x `side` in each of `batch` sequences: arguments of `cls`.

    The processor is that of the configuration's folder (`preprocessor_config.json`), else that of transformers with the sizes
    of the configuration. Raises ImporterError.
    """
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    try:
        made = dict(_processor(config, name)(images=[pixels], return_tensors="pt"))
    except ImporterError:
        raise
    except Exception as e:
        raise ImporterError(
            f"no image processor of {cls.__name__} makes inputs of a picture of {side} x {side}: {first_line(e)}",
            "processors need Pillow and torchvision: pip install pillow 'placekit-models[torchvision]'; leave out image= to"
            " place text alone",
        ) from e
    takes = inspect.signature(cls.forward).parameters
    given = {k: v for k, v in made.items() if k in takes and isinstance(v, torch.Tensor)}
    if "pixel_attention_mask" in given and given["pixel_attention_mask"].all():
        del given["pixel_attention_mask"]  # the default, whose values are known whatever its size
    return {k: v.repeat(batch, *[1] * (v.dim() - 1)) for k, v in given.items()}


def _processor(config: Any, name: str) -> Any:
    """The image processor of a model. Raises ImporterError."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING

    data = configurations.beside(name, "hf", "preprocessor_config.json")
    data = data or configurations.beside(name, "hf", "processor_config.json").get("image_processor") or {}
    own = getattr(transformers, str(data.get("image_processor_type")).removesuffix("Fast"), None)
    if own is not None:
        return own.from_dict(data)
    if type(config) not in IMAGE_PROCESSOR_MAPPING:
        raise ImporterError(
            f"transformers has no image processor for {config.model_type!r}", "leave out image= to place text alone"
        )
    kinds: Any = IMAGE_PROCESSOR_MAPPING[type(config)]
    kind = kinds.get("torchvision") or kinds["pil"]
    return kind.from_dict(data) if data else kind(**_sizes(config, kind), apply_ocr=False)


def _sizes(config: Any, kind: Any) -> dict[str, Any]:
    """The sizes of a configuration as arguments of an image processor; its defaults are those of one model."""
    vision = getattr(config, "vision_config", config)
    found: dict[str, Any] = {}
    for theirs, ours in (
        ("patch_size", "patch_size"),
        ("temporal_patch_size",) * 2,
        ("merge_size", "spatial_merge_size"),
    ):
        value = getattr(vision, ours, None)
        if isinstance(value, int) and isinstance(getattr(kind, theirs, None), int):
            found[theirs] = value
        elif isinstance(value, int) and isinstance(getattr(kind, theirs, None), dict):  # Pixtral's, in merged patches
            found[theirs] = dict.fromkeys(("height", "width"), value * getattr(config, "spatial_merge_size", 1))
    if grid := getattr(config, "image_grid_pinpoints", None):
        found["image_grid_pinpoints"] = grid
    image, size = size_of(config), getattr(kind, "size", None) or {}
    if not image or hasattr(kind, "merge_size"):  # that processor keeps the picture's own size
        return found
    height, width = image if isinstance(image, list | tuple) else (image, image)
    tiles = getattr(kind, "max_image_size", None)  # a picture of at most 4 x 4 tiles, as in Idefics 3
    if tiles:
        found["max_image_size"] = dict.fromkeys(tiles, height)
    one = {"longest_edge": height * (4 if tiles else 1), "shortest_edge": height, "height": height, "width": width}
    found["size"] = {k: one[k] for k in dict(size)}
    if getattr(kind, "crop_size", None):
        found["crop_size"] = {"height": height, "width": width}
    return found


def tokens_of(model: Any, given: dict[str, torch.Tensor]) -> int:
    """How many tokens of text the pictures `given` stand for, in all sequences together; `model` is fake.

    0 for models that attend to pictures instead (Mllama) or put them before the text.
    """
    if not hasattr(model, "get_image_features"):
        return 0
    takes = inspect.signature(model.get_image_features).parameters
    with torch.no_grad():
        found = model.get_image_features(**{k: v for k, v in given.items() if k in takes})
    features = getattr(found, "pooler_output", None)
    if features is None:
        features = found[0]
    parts = features if isinstance(features, list | tuple) else [features]
    return sum(part.numel() // part.shape[-1] for part in parts)
