"""Towers: encoders of images and sound, from llama.cpp's `mmproj` files or from a folder of safetensors.

Sizes and numbers of tokens follow ggml-org/llama.cpp, tools/mtmd/clip.cpp at 0024aa7 (`load_hparams`, `clip_n_output_tokens`);
the code is our own. An image is one tile: models that cut large images into tiles take several.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from placekit_core import ImporterError, parse_json, read_bytes
from placekit_models.checkpoint.gguf_header import read_gguf
from placekit_models.checkpoint.metadata import Values
from placekit_models.checkpoint.modules import tensor_names
from placekit_models.checkpoint.safetensors_header import TOWERS, files_of, read_safetensors
from placekit_models.shape import Checkpoint, Tensor, Tower

MERGES = {"gemma3": 4, "gemma4v": 3, "ldp": 2, "ldpv2": 2}
"""Patches of each side that become one token, where neither the header nor the width of the projector says so."""
QWEN, SMALL = (4096, 46**2), (1024, 256)
ANY_SIZE = {
    "qwen2vl_merger": QWEN, "qwen2.5vl_merger": QWEN, "qwen3vl_merger": QWEN, "glm4v": QWEN, "pixtral": SMALL, "kimivl": SMALL,
    "gemma4v": (280, 256),
}  # fmt: skip
"""Projectors of towers that take images of any size: the most tokens of an image, and the tokens that memory is reserved for."""
CLIP = ("mlp", "ldp", "ldpv2", "resampler", "adapter")
"""Projectors in whose files `projection_dim` is not the width of the decoder."""
USUAL, WINDOW, FRAMES = 560, 112, 3000
"""Pixels of each side: of an image, unless a size is given, and of a window in Qwen2.5-VL. Frames in 30 seconds of sound."""
POOLED = ("qwen2a", "musicflamingo")
"""Projectors of sound that join two tokens."""
LARGEST = 2**15
TYPES = {
    "gemma3": "gemma3", "qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger", "qwen3_vl": "qwen3vl_merger",
    "qwen3_vl_moe": "qwen3vl_merger", "qwen3_5": "qwen3vl_merger", "qwen3_5_moe": "qwen3vl_merger", "glm4v": "glm4v",
    "mistral3": "pixtral", "kimi_vl": "kimivl",
}  # fmt: skip
"""Projectors by `model_type` of a configuration."""


def with_tower(checkpoint: Checkpoint, model: str, mmproj: str, images: int, image: int | None) -> Checkpoint:
    """The checkpoint with its tower, if images or a file are asked for.

    Args:
        model, mmproj: the model as `find` takes it, and the file of the tower; empty: beside the model.
        images, image: how many, and the pixels of each side; None: as the tower's file has it.

    Raises ImporterError if there is no tower, or it does not fit the model.
    """
    if not mmproj and not images:
        return checkpoint
    hidden = next(t.shape[0] for t in checkpoint.tensors if t.key == "token_embd")
    if mmproj:
        path = Path(mmproj).expanduser()
        if not path.is_file():
            raise ImporterError(f"no file {mmproj}", "mmproj= takes the GGUF file of a tower, usually mmproj-....gguf")
        return replace(checkpoint, tower=_from_gguf(path, hidden, image))
    path = Path(model.removeprefix("hf:")).expanduser()
    folder = path if path.is_dir() else path.parent
    beside = sorted(folder.glob("*mmproj*.gguf")) if path.exists() else []
    if len(beside) > 1:
        raise ImporterError(
            f"{folder} has {len(beside)} towers: {', '.join(p.name for p in beside)}", "name one: mmproj=FILE"
        )
    if beside:
        return replace(checkpoint, tower=_from_gguf(beside[0], hidden, image))
    tower = _of_folder(path, hidden, image) if path.is_dir() else None
    if tower is None:
        raise ImporterError(
            f"images={images}, and {model} has no tower that reads them",
            "give its file, mmproj=mmproj-....gguf, or a folder with config.json and all safetensors files",
        )
    return replace(checkpoint, tower=tower)


def check_room(checkpoint: Checkpoint, images: int, prompt: int) -> None:
    """Raise ImporterError if a prompt has no room for its images."""
    tokens = images * checkpoint.tower.tokens if checkpoint.tower else 0
    if tokens >= prompt:
        raise ImporterError(
            f"images={images} take {tokens:,} tokens of a prompt of {prompt:,}",
            f"give prompt={tokens + 100} or fewer images",
        )


def _from_gguf(path: Path, hidden: int, image: int | None) -> Tower:
    header = read_gguf(path)
    get = Values(header.values, path)
    if get.architecture != "clip":
        raise ImporterError(
            f"{path} is not a tower, but a model of architecture {get.architecture}", "give mmproj-....gguf"
        )
    kind = "vision" if any(t.name.startswith("v.") for t in header.tensors) else "audio"
    projector = get.text("clip.projector_type") or get.text(f"clip.{kind}.projector_type")
    return _tower(header.tensors, get, projector, kind, hidden, image, str(path))


def _of_folder(folder: Path, hidden: int, image: int | None) -> Tower | None:
    """The tower among the safetensors files of a folder; None without one."""
    path = folder / "config.json"
    config: Any = parse_json(read_bytes(path, 2**22)) if path.is_file() else {}
    vision, projector = config.get("vision_config"), TYPES.get(str(config.get("model_type")), "")
    tensors = list(_named(read_safetensors(files_of(folder)))) if isinstance(vision, dict) else []
    if not tensors:
        return None
    values = {
        "spatial_merge_size": config.get("spatial_merge_size", 0), "image_size": USUAL if projector in ANY_SIZE else 0, **vision,
        "projection_dim": hidden, "embedding_length": vision.get("hidden_size", 0),
    }  # fmt: skip
    get = Values({"general.architecture": "clip"} | {f"clip.vision.{k}": v for k, v in values.items()}, path)
    return _tower(tensors, get, projector, "vision", hidden, image, f"mmproj-{folder.resolve().name}.gguf")


def _named(found: dict[str, tuple[str, tuple[int, ...], int]]) -> Iterable[Tensor]:
    """The tensors of the tower, with their names in `mmproj` files; others are called `v.` and their path."""
    names = tensor_names("clip", 200)
    for path, (type_, sizes, size) in found.items():
        if not TOWERS.match(path) or re.match(r"(model\.)?mtp\.", path) or not math.prod(sizes):
            continue
        end = next((end for end in (".weight", ".bias") if path.endswith(end)), "")
        base = path.removesuffix(end)
        short = base.removeprefix("model.")
        name = next((names[n] for n in (base, short, f"model.{short}") if n in names), f"v.{short}")
        shape = tuple(reversed(sizes)) or (1,)
        yield Tensor(f"{name}{end}", shape, size * 8 / math.prod(shape), type_, base)


def _tower(
    tensors: Iterable[Tensor], get: Values, projector: str, kind: str, hidden: int, image: int | None, file: str
) -> Tower:
    """The tower of these tensors. Raises ImporterError if its header contradicts itself or the model."""
    flat = tuple(replace(t, shape=(math.prod(t.shape[:-1]), t.shape[-1])) if len(t.shape) > 2 else t for t in tensors)
    own, outer = get.number(f"{kind}.projection_dim"), [t for t in flat if ".blk." not in t.name]
    if hidden not in ({own} if own and projector not in CLIP else {n for t in outer for n in t.shape}):
        raise ImporterError(
            f"{file} is the tower of another model: its results are {own} wide, but the model is {hidden} wide",
            "give the mmproj file that belongs to the model",
        )
    if kind == "audio":
        patches = FRAMES // 2
        tokens = patches // max(get.number("audio.projector.stack_factor"), 1) // (2 if projector in POOLED else 1)
        return Tower(flat, patches, max(tokens, 1), buffer=_buffer(flat, patches), file=file)
    wide = max(get.number("vision.embedding_length"), 1)
    first = next((t.shape[0] for t in outer if t.matrix and t.name.startswith("mm.") and t.shape[0] % wide == 0), wide)
    merge = (
        get.number("vision.projector.scale_factor") or get.number("vision.spatial_merge_size") or MERGES.get(projector, 0)
        or math.isqrt(first // wide)
    )  # fmt: skip
    patch, side = get.number("vision.patch_size"), get.number("vision.image_size")
    if image not in (None, side) and projector not in ANY_SIZE:
        raise ImporterError(
            f"image={image} is given, but {file} takes images of {side} x {side} pixels", "leave out image="
        )
    side = image or side
    if not 0 < patch * merge <= side <= LARGEST:
        raise ImporterError(
            f"{file} has no token for an image of {side} pixels a side: {merge} x {merge} patches of {patch} pixels are one",
            "give another image=, or download the file again",
        )
    most, reserved = ANY_SIZE.get(projector, (LARGEST**2, 0))
    rows = min(side // (patch * merge), math.isqrt(most))  # larger images are made smaller
    tokens = next((t.shape[-1] for t in outer if t.name == "resampler.query"), rows**2)
    tokens += rows - 1 if any(t.name.startswith("v.token_embd.img_break") for t in outer) else 0
    layers = {t.name.split(".")[2] for t in flat if t.name.startswith("v.blk.")}
    period = get.number("vision.n_wa_pattern")
    windows = tuple((WINDOW // patch) ** 2 if (i + 1) % period else 0 for i in range(len(layers))) if period else ()
    room = max(rows**2, reserved) * merge**2
    pixels, mask = 12 * room * patch**2, 2 * room**2 if windows else 0
    buffer = _buffer(flat, room) + pixels + mask
    return Tower(flat, rows**2 * merge**2, tokens, windows, buffer, file)


def _buffer(tensors: Iterable[Tensor], patches: int) -> int:
    """Bytes of what a layer computes for `patches`: the values in its network, and two values as wide as the tower."""
    first = re.compile(r"[va]\.blk\.0\.ffn_(gate|up)")
    networks = {match[1]: t.shape for t in tensors if t.matrix and (match := first.fullmatch(t.key))}
    inputs, outputs = networks.get("up", (0, 0))  # in some files, `up` and `down` are each other's
    return 4 * patches * (2 * min(inputs, outputs) + (3 if "gate" in networks else 1) * max(inputs, outputs))
