"""Towers for images: their bytes and tokens beside published ones, their kernels, and bad files."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import made_towers
import numpy as np
import pytest
from placekit_models.checkpoint.importer import CheckpointImporter
from placekit_models.checkpoint.options import CheckpointOptions
from placekit_models.checkpoint.towers import with_tower
from placekit_models.shape import Checkpoint, Tensor, Tower
from test_models_checkpoint import CONFIG, quantised, small

from placekit_core import Graph, ImporterError

GEMMA = {"checkpoint": "hf:Gemma-3-4B", "weights": "q4_k_m", "context": 4096}
MIB = 2**20


def tower_of(path: Path, hidden: int, image: int | None = None) -> Tower:
    model = Checkpoint((Tensor("token_embd.weight", (hidden, 8), 16.0),), 1)
    found = with_tower(model, "", str(path), 1, image).tower
    assert found is not None
    return found


def load(**options: Any) -> Graph:
    [program] = CheckpointImporter(CheckpointOptions(**options)).load()
    return program.graph


def tower_operations(graph: Graph) -> np.ndarray:
    return np.asarray([name.startswith(("v.", "mm.")) for name in graph.op_name])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("towers")
    return {name: made_towers.write(folder / f"mmproj-{name}.gguf", name) for name in made_towers.TOWERS}


@pytest.mark.parametrize(
    ("projector", "tensors", "mib"),
    [
        # logs in threads of ggml-org/llama.cpp: 22790 (Gemma-3-4B), 22673 (Qwen3.5-4B), 16842 (Mistral-Small-3.2), and another
        # user's of Qwen2.5-VL-7B
        ("gemma3", 439, 811.79),
        ("qwen3vl_merger", 298, 644.26),
        ("pixtral", 223, 837.36),
        ("qwen2.5vl_merger", 519, 1291.40),
    ],
)
def test_bytes_are_those_in_published_logs(files: dict[str, Path], projector: str, tensors: int, mib: float) -> None:
    tower = tower_of(files[projector], made_towers.TOWERS[projector]["hidden"])
    assert len(tower.tensors) == tensors
    assert tower.bytes / MIB == pytest.approx(mib, abs=0.005)


def test_tokens_of_images(files: dict[str, Path]) -> None:
    assert tower_of(files["gemma3"], 2560).tokens == 256
    # nibor1896/Crow, issue 142: 1,026 tokens of a picture of 1024 x 1024 and 258 of 512 x 512, two of which are text around it
    assert tower_of(files["qwen3vl_merger"], 2560, 1024).tokens == 1024
    assert tower_of(files["qwen3vl_merger"], 2560, 512).tokens == 256
    assert tower_of(files["qwen3vl_merger"], 2560, 9999).tokens == 4096
    assert tower_of(files["pixtral"], 5120, 448).tokens == 16 * 16 + 15
    assert tower_of(files["qwen2.5vl_merger"], 3584).tokens == 20 * 20


def test_images_run_before_the_prompt(files: dict[str, Path]) -> None:
    mmproj = str(files["gemma3"])
    text, two = (load(**GEMMA, mode="prompt", prompt=1000, images=n, mmproj=mmproj) for n in (0, 2))
    mine = tower_operations(two) & two.kernel
    width, patches, ffn = 1152, 4096, 4304
    layer = 2 * patches * (4 * width**2 + 2 * width * ffn) + 4 * patches**2 * width
    assert two.flops[mine].sum() == pytest.approx(2 * 27 * layer, rel=0.01)
    assert two.flops[~mine & two.kernel].sum() == pytest.approx(text.flops[text.kernel].sum(), rel=1e-9)
    names = list(two.op_name)
    assert "v.blk.3.attn_q@-2" in names
    assert names.index("mm.input_projection@-1") < names.index("token_embd@0")
    decode = load(**GEMMA, images=2, mmproj=mmproj)
    mine = tower_operations(decode)
    assert decode.persistent_bytes[mine].sum() / MIB == pytest.approx(811.79, abs=0.005)
    assert not decode.kernel[mine].any()


def test_windows_are_cheaper_than_attention_to_all_patches(files: dict[str, Path]) -> None:
    tower = tower_of(files["qwen2.5vl_merger"], 3584)
    assert tower.windows == (64, 64, 64, 64, 64, 64, 64, 0) * 4


@pytest.mark.filterwarnings("ignore:.*(early|left out)")
def test_a_tower_beside_the_model_is_found(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(small())
    with pytest.raises(ImporterError, match=r"images=1, and .*small\.gguf has no tower that reads them"):
        load(checkpoint=str(path), images=1)
    made_towers.write(tmp_path / "mmproj-a.gguf", "gemma3", hidden=64, layers=2)
    assert "v.blk.1.ffn_down.weight" in load(checkpoint=str(path), images=1).op_name
    assert "v.blk.1.ffn_down.weight" not in load(checkpoint=str(path)).op_name
    made_towers.write(tmp_path / "mmproj-b.gguf", "gemma3", hidden=64, layers=2)
    with pytest.raises(ImporterError, match=r"has 2 towers: mmproj-a\.gguf, mmproj-b\.gguf"):
        load(checkpoint=str(tmp_path), images=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out")
def test_a_folder_of_safetensors_has_its_tower(tmp_path: Path) -> None:
    dense = {k: v for k, v in CONFIG.items() if "expert" not in k} | {"model_type": "qwen2_5_vl"}
    vision = {"hidden_size": 32, "patch_size": 14, "spatial_merge_size": 2, "depth": 1}
    names: dict[str, tuple[str, tuple[int, ...]]] = {"model.embed_tokens.weight": ("BF16", (100, 64))}
    for i in range(2):
        p = f"model.layers.{i}"
        names |= {
            f"{p}.self_attn.{k}_proj.weight": ("BF16", (n, 64)) for k, n in (("q", 64), ("k", 32), ("v", 32), ("o", 64))
        }
    names |= {
        "visual.patch_embed.proj.weight": ("BF16", (32, 3, 2, 14, 14)), "visual.blocks.0.norm1.weight": ("BF16", (32,)),
        "visual.blocks.0.attn.qkv.weight": ("BF16", (96, 32)), "visual.blocks.0.attn.proj.weight": ("BF16", (32, 32)),
        "visual.blocks.0.mlp.up_proj.weight": ("BF16", (48, 32)), "visual.blocks.0.mlp.down_proj.weight": ("BF16", (32, 48)),
        "visual.merger.mlp.0.weight": ("BF16", (128, 128)), "visual.merger.mlp.2.weight": ("BF16", (64, 128)),
    }  # fmt: skip
    folder = quantised(tmp_path / "m", dense | {"vision_config": vision}, names)
    graph = load(checkpoint=str(folder), images=1, image=280, mode="prompt", prompt=200)
    place = graph.op_name.index("v.blk.0.attn_qkv@-1")
    assert graph.module[place] == "visual.blocks.0.attn.qkv"
    assert graph.flops[place] == 2 * 400 * 32 * 96
    assert graph.flops[graph.op_name.index("mm.2@-1")] == 2 * 100 * 128 * 64
    with pytest.raises(ImporterError, match="images=1 take 100 tokens of a prompt of 100"):
        load(checkpoint=str(folder), images=1, image=280, mode="prompt", prompt=100)


def test_towers_that_do_not_fit_are_one_error(files: dict[str, Path], tmp_path: Path) -> None:
    def fails(match: str, **options: Any) -> None:
        with pytest.raises(ImporterError, match=match):
            load(**GEMMA | {"images": 1} | options)

    fails("hf:Gemma-3-4B has no tower")
    fails("no file nowhere", mmproj="nowhere.gguf")
    fails("tower of another model: its results are 5120 wide, but the model is 2560 wide", mmproj=str(files["pixtral"]))
    fails("image=512 is given, but .* takes images of 896 x 896 pixels", mmproj=str(files["gemma3"]), image=512)
    fails("images=20 take 5,120 tokens of a prompt of 4,096", mmproj=str(files["gemma3"]), images=20)
    (tmp_path / "model.gguf").write_bytes(small())
    fails("is not a tower, but a model of architecture llama", mmproj=str(tmp_path / "model.gguf"))
    for says in ({"patch_size": 0}, {"patch_size": 2**20}, {"image_size": 2**30}):
        made_towers.write(tmp_path / "bad.gguf", "gemma3", says)
        fails("has no token for an image", mmproj=str(tmp_path / "bad.gguf"))


@pytest.mark.slow
def test_damaged_headers_are_one_error_or_none(files: dict[str, Path], tmp_path: Path) -> None:
    chance, path = random.Random(0), tmp_path / "mmproj.gguf"
    data = files["gemma3"].read_bytes()[:30_000]
    for _ in range(30):
        damaged = bytearray(data)
        for _ in range(chance.choice([1, 1, 4])):
            damaged[chance.randrange(700 if chance.random() < 0.7 else len(data))] = chance.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(ImporterError):
            tower_of(path, 2560)
