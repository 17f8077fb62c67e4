"""Reads the headers of safetensors files, and nothing beyond them, as the tensors of a decoder.

The format is documented in huggingface/safetensors, README.md: the length of a header in JSON, and the header.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from placekit_core import ImporterError, parse_json, read_bytes, reading
from placekit_models.checkpoint.modules import tensor_names
from placekit_models.shape import Checkpoint, Shape, Tensor

MAX_HEADER, MAX_FILES = 2**26, 1000
COMPANIONS = re.compile(
    r"[._](qweight|qzeros|scales|g_idx|weight_scale(_inv|_2)?|input_scale|k_scale|v_scale|weight_packed|weight_shape|SCB"
    r"|weight_zero_point|weight_g_idx|blocks|(weight\.)?(absmax|quant_map|nested_\w+|quant_state\.\w+)|weight_global_scale)$"
)
"""Ends of the names of tensors that hold a quantised matrix together."""
FLOATS = ("F32", "F16", "BF16")
TOWERS = re.compile(r"^(model\.)?(visual|vision\w*|audio\w*|multi_modal_projector|mm_\w+|mtp)\.")


def read_safetensors(files: list[Path]) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Type, sizes and bytes of each tensor. Raises ImporterError."""
    found: dict[str, tuple[str, tuple[int, ...], int]] = {}
    if len(files) > MAX_FILES:
        raise ImporterError(f"{len(files)} safetensors files are in {files[0].parent}", f"at most {MAX_FILES} are read")
    for path in files:
        with reading(path, ImporterError, "safetensors file", "download it again; only its header is read"):
            for name, tensor in _entries(path):
                if name in found:
                    raise ValueError(f"the tensor {name!r:.60} is in another file, too")
                found[name] = tensor
    return found


def _entries(path: Path) -> list[tuple[str, tuple[str, tuple[int, ...], int]]]:
    with path.open("rb", buffering=0) as file:
        length = int.from_bytes(file.read(8).ljust(8, b"\xff"), "little")
        if length > MAX_HEADER:
            raise ValueError(f"its header has more than {MAX_HEADER:,} bytes")
        data = file.read(length)
    if len(data) < length:
        raise ValueError("it ends in its header")
    header = parse_json(data)
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    return [(name, _entry(name, value)) for name, value in header.items() if name != "__metadata__"]


def _entry(name: str, value: Any) -> tuple[str, tuple[int, ...], int]:
    match value:
        case {"dtype": str(type_), "shape": list(sizes), "data_offsets": [int(begin), int(end)]}:
            if all(type(n) is int and 0 <= n < 2**40 for n in sizes) and 0 <= begin <= end < 2**50:
                return type_, tuple(sizes), end - begin
    raise ValueError(f"the tensor {name!r:.60} has no type, sizes or place")


def from_safetensors(files: list[Path], shape: Shape, folder: Path) -> Checkpoint:
    """The tensors of the files, with the hyperparameters of `shape`. Raises ImporterError if they contradict it."""
    plain = shape.whole(folder.name)
    logical = {t.name: t.shape for t in plain.tensors}
    for name, (inputs, outputs, *rest) in [item for item in logical.items() if item[0].endswith("ffn_up_exps.weight")]:
        logical[name.replace("up", "gate_up")] = (inputs, 2 * outputs, *rest)
    names = tensor_names("", shape.layers) | tensor_names(shape.architecture, shape.layers)
    own: dict[str, Tensor] = {}
    bytes_: dict[str, int] = {}
    left = 0
    for name, (type_, sizes, size) in read_safetensors(files).items():
        path = re.sub(r"^(model\.)?language_model\.(model\.)?(?!lm_head)", "model.", name)
        if TOWERS.match(name) or _layer(path) >= shape.layers:
            left += size
            continue
        base, end, count = _base(path)
        found = names.get(base)
        if found is None:
            found = f"blk.{_layer(path)}.{base.rpartition(f'.{_layer(path)}.')[2]}" if _layer(path) >= 0 else base
        target = f"{found}{end}"
        module = base.rpartition(".")[0] if base.rpartition(".")[0].endswith(".experts") else base
        bytes_[target] = bytes_.get(target, 0) + size
        previous = own.get(target)
        guess = tuple(reversed(sizes)) or (1,)
        if count >= 0:  # a file for each expert
            guess = (*guess[:2], max(count + 1, previous.shape[-1] if previous else 0))
        elif len(guess) == 3 and guess[1] == shape.hidden:
            guess = (guess[1], guess[0], guess[2])
        known = guess if type_ in FLOATS and not COMPANIONS.search(path) else logical.get(target, guess)
        if previous is None or math.prod(known) > previous.numbers:
            own[target] = Tensor(target, known, 16.0, module=module)
    _check(own, shape, folder)
    tensors = tuple(
        replace(t, bits=bytes_[name] * 8 / t.numbers) for name, t in own.items() if t.numbers > 0
    )  # fmt: skip
    notes = (
        (f"left out: {left:,} bytes of towers for pictures and sound, and of layers that draft tokens",) if left else ()
    )
    return replace(plain, tensors=tensors, notes=notes)


def _layer(path: str) -> int:
    match = re.search(r"(?:layers|h|blocks)\.(\d{1,6})\.", path)
    return int(match[1]) if match else -1


def _base(path: str) -> tuple[str, str, int]:
    """The module that has a tensor, the end of the name in GGUF, and the number of the expert (-1: none)."""
    match = re.search(r"\.experts\.(\d{1,6})\.", path)
    path = re.sub(r"\.experts\.\d+\.", ".experts.", path)
    path = COMPANIONS.sub("", path)
    end = ".bias" if path.endswith((".bias", "_bias")) else ".weight"
    return re.sub(r"(\.weight|[._]bias)$", "", path), end, int(match[1]) if match else -1


def _check(tensors: dict[str, Tensor], shape: Shape, folder: Path) -> None:
    """Raise ImporterError if the files do not belong to the configuration."""
    hint = "config.json and the files must belong to one model; without all files, remove them: config.json is enough"
    layers = {t.layer for t in tensors.values()}
    lacking = [i for i in range(shape.layers) if i not in layers]
    if lacking:
        raise ImporterError(
            f"{folder} has no tensors of layer {lacking[0]}, but its configuration has {shape.layers} layers", hint
        )
    embedding = tensors.get("token_embd.weight")
    if embedding is None or embedding.shape[0] != shape.hidden or not embedding.numbers:
        wide = f"of width {shape.hidden} among {len(tensors)} tensors"
        raise ImporterError(f"{folder} has no embedding of words {wide}", hint)
    for t in tensors.values():
        expected = shape.experts.count if shape.experts else 0
        if "exps" in t.key and t.matrix and (len(t.shape) != 3 or t.shape[2] != expected):
            raise ImporterError(
                f"{folder} contradicts its configuration, which has {expected} experts: {t.name} has {t.shape}", hint
            )


def files_of(folder: Path) -> list[Path]:
    """The safetensors files in a folder. If the folder has an index, the files that it lists. Raises ImporterError."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(folder.glob("*.safetensors"))
    with reading(index, ImporterError, "index", "download it again"):
        data = parse_json(read_bytes(index))
        listed = data.get("weight_map") if isinstance(data, dict) else None
        if not isinstance(listed, dict) or not all(isinstance(v, str) and "/" not in v for v in listed.values()):
            raise ValueError("it has no `weight_map` of names and files")
    files = [folder / name for name in sorted({*listed.values()})]
    present = [path for path in files if path.is_file()]
    if present and len(present) < len(files):
        missing = next(path.name for path in files if path not in present)
        raise ImporterError(
            f"{folder} has {len(present)} of the {len(files)} files of its index, without {missing}",
            "download the others (the beginning of each is enough), or remove all: config.json is enough",
        )
    return present
