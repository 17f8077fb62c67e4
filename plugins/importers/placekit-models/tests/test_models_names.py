"""How models are named: where configurations come from, images, functions of the user's own, and mistakes."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from placekit_models import configurations, images
from placekit_models.extras import offline
from placekit_models.importer import split
from placekit_models.shipped import shipped
from placekit_testing.speed import mostly_slow
from placekit_torch.vision import declare_torchvision

from placekit_core import ImporterError, load_programs, place

torch.set_num_threads(1)  # the tensors are small, and tests run side by side
declare_torchvision()  # before timm and torchvision are imported

OWN = """
import torch

def step(batch=2, image=4):
    return torch.nn.Conv2d(3, 2, 1), torch.randn(batch, 3, image, image)
"""


def test_a_prefix_says_where_from() -> None:
    for model, expected in {
        "hf:a/b": ("hf", "a/b"),
        "timm:x.in1k": ("timm", "x.in1k"),
        "hf:/a/config.json": ("hf", "/a/config.json"),
        "some/file.py:make.step": ("file", "some/file.py:make.step"),
    }.items():
        assert split(model) == expected


def test_unknown_prefixes() -> None:
    for model, message in {
        "": "no model is named\n  give model=NAME: hf:NAME, timm:NAME",
        "hg:x": "model='hg:x' has an unknown prefix, hg:",
        "tim:x": "did you mean timm:x",
        "Qwen3-8B": "does not say where the model comes from\n  did you mean hf:Qwen/Qwen3-8B",
        "my.py": "names a file, but no function in it\n  give model=my.py:FUNCTION",
        "w.pt": "is a file of weights, which holds no graph\n  give FILE.py:FUNCTION",
        "x": "FILE.py:FACTORY, FILE.onnx",
        "hf:a,hf:b": "has several names\n  a sweep over several needs -m",
    }.items():
        with pytest.raises(ImporterError, match=message):
            split(model)


def test_a_folder_needs_no_prefix(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert split(str(tmp_path)) == ("hf", str(tmp_path))


def test_places_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    assert configurations.find("Qwen/Qwen3-8B", "hf")["hidden_size"] == 4096  # in the package
    assert configurations.find("gpt2", "hf")["n_embd"] == 768  # without its organisation
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "gpt2"
    own.mkdir()
    (own / "config.json").write_text('{"policy": 1}')
    assert configurations.find("gpt2", "hf")["n_embd"] == 768  # the folder is not a model's, but for example a run's
    with pytest.raises(ImporterError, match=r"gpt2/config\.json has no `model_type`"):
        configurations.find("./gpt2", "hf")
    (own / "config.json").write_text('{"model_type": 1}')
    assert configurations.find("gpt2", "hf") == {"model_type": 1}  # a folder of a model comes first
    assert configurations.find("gpt2/config.json", "hf") == {"model_type": 1}
    cached = tmp_path / "cached.json"
    cached.write_text('{"n_embd": 2}')
    asked: list[Any] = []

    def cache(repository: str, file: str) -> str:
        asked.append((repository, file))
        return str(cached)

    monkeypatch.setattr(hub, "try_to_load_from_cache", cache)
    assert configurations.find("some/model/part", "hf") == {"n_embd": 2}
    assert asked == [("some/model", "part/config.json")]


def test_nothing_is_asked_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")

    def refused(*args: Any, **keywords: Any) -> Any:
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refused)
    with pytest.raises(
        ImporterError, match=r"no configuration of 'a/b' on this computer(?s:.*)put its config\.json into a"
    ):
        configurations.find("a/b", "hf")
    with pytest.raises(ImporterError, match="did you mean hf:Qwen/Qwen3-8B"):
        configurations.find("Qwen/Qwen3-9B", "hf")
    with pytest.raises(ImporterError, match="did you mean hf:openai-community/gpt2"):
        configurations.find("gpt-2", "hf")


def test_damaged_configurations(tmp_path: Path) -> None:
    for content, message in (("[]", "it holds a list"), ("{", "invalid JSON"), ("\xff", "it is not text")):
        (tmp_path / "config.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(ImporterError, match=rf"config\.json is not a readable configuration: .*{message}"):
            configurations.find(str(tmp_path), "hf")


def test_a_pipeline_has_parts(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    for part in ("unet", "vae"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text("{}")
    with pytest.raises(ImporterError, match=r"pipeline of several models\n  name one of them: .*/unet or /vae"):
        configurations.find(str(tmp_path), "diffusers")


def test_a_missing_library_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from placekit_models.extras import library

    name = "timm"
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ImporterError, match=f"which is not installed\n  pip install 'placekit-models\\[{name}\\]'"):
        library(name, "x")


def test_a_function_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "own_names_model.py"
    path.write_text(OWN)
    [program] = load_programs(model=f"{path}:step", mode="inference", batch=5, image=3)
    graph = program.graph
    assert graph.persistent_bytes[graph.op_type.is_value("input")].tolist() == [5 * 3 * 9 * 4]
    with pytest.raises(ImporterError, match="takes no 'dtype'\n  its parameters are batch, image: leave dtype= out"):
        load_programs(model=f"{path}:step", dtype="float16")
    with pytest.raises(ImporterError, match="takes no 'context'"):  # the first of several, whatever the hash seed
        load_programs(model=f"{path}:step", weights="int8", dtype="float16", context=4)
    with pytest.raises(ImporterError, match="mode=decode is only for models of transformers"):
        load_programs(model=f"{path}:step", mode="decode")
    with pytest.raises(ImporterError, match=r"no file .*nope\.py"):
        load_programs(model="nope.py:step")


@pytest.mark.parametrize("before", ["0", None])
def test_the_network_is_not_used_whatever_the_environment_says(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if before is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", before)
    for _ in range(2):
        with offline():
            assert constants.is_offline_mode()
            assert os.environ["HF_HUB_OFFLINE"] == "1"
        assert not constants.is_offline_mode()
        assert os.environ.get("HF_HUB_OFFLINE") == before


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("timm:resnet5", {}, "no model of timm named 'resnet5'\n  did you mean 'resnet50'"),
        ("torchvision:resnet5", {}, "no model of torchvision named 'resnet5'"),
        ("torchvision:fcn_resnet50", {"mode": "train"}, "is not a classifier: .*targets\n  mode=inference needs none"),
        ("torchvision:fasterrcnn_resnet50_fpn", {}, "detects objects: how many boxes torchvision::nms"),
        ("torchvision:quantized_resnet18", {}, r"kernels of 8 bits.*\n  give torchvision:resnet18"),
        ("timm:resnet18", {"mode": "decode"}, "generates no text, so it has no mode=decode"),
        ("timm:resnet18", {"context": 3}, "has no context"),
        ("diffusers:stable-diffusion-v1-5/stable-diffusion-v1-5/unet", {"weights": "int8"}, "has no option weights"),
    ],
)
def test_mistakes_with_images(model: str, options: dict[str, Any], message: str) -> None:
    pytest.importorskip(model.partition(":")[0])
    with pytest.raises(ImporterError, match=message):
        load_programs(model=model, **options)


@pytest.mark.parametrize(
    ("model", "image", "positions"),
    [
        ("torchvision:squeezenet1_1", None, 0),
        pytest.param("timm:mobilenetv3_small_050", 64, 0, marks=pytest.mark.slow),
        pytest.param("timm:vit_tiny_patch16_224", 64, 180 * 192, marks=pytest.mark.slow),
        pytest.param("torchvision:vit_b_16", 64, 180 * 768, marks=pytest.mark.slow),
    ],
)
def test_images(model: str, image: int | None, positions: int) -> None:
    """A vision transformer has one position per patch of 16 x 16: for 64 x 64 pixels 16 of them, where 224 x 224 have 196."""
    source, _, name = model.partition(":")
    library = pytest.importorskip(source)
    graph = load_programs(model=model, image=image, batch=2)[0].graph
    with torch.device("meta"):
        whole = library.create_model(name) if source == "timm" else library.models.get_model(name)
    parameters = sum(p.numel() for p in whole.parameters()) - positions
    assert graph.persistent_bytes[graph.op_type.is_value("parameter")].sum() == 4 * parameters
    side = image or 224
    assert graph.persistent_bytes[graph.op_type.is_value("input")].tolist() == [4 * 2 * 3 * side * side]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("lraspp_mobilenet_v3_large", [3 * 64 * 64]),
        ("r3d_18", [3 * 16 * 64 * 64]),
        ("raft_small", [3 * 128 * 128, 3 * 128 * 128]),
    ],
)
def test_other_networks_for_images(name: str, inputs: list[int]) -> None:
    """Segmentation, a video of 16 images, and the optical flow between two."""
    pytest.importorskip("torchvision")
    graph = load_programs(model=f"torchvision:{name}", image=128 if name == "raft_small" else 64)[0].graph
    assert graph.persistent_bytes[graph.op_type.is_value("input")].tolist() == [4 * n for n in inputs]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["timm:resnet18"])
def test_images_in_training(model: str) -> None:
    pytest.importorskip(model.partition(":")[0])
    graph = load_programs(model=model, mode="train", batch=2)[0].graph
    state = graph.persistent_bytes[graph.op_type.is_value("state")].sum()  # SGD's momentum
    assert state == graph.persistent_bytes[graph.op_type.is_value("parameter")].sum()
    assert (graph.phase == 2).sum() > 0


DENOISERS: dict[str, dict[str, Any]] = {
    "FluxTransformer2DModel": {"num_layers": 1, "num_single_layers": 1, "guidance_embeds": True},
    "SD3Transformer2DModel": {"num_layers": 1},
    "PixArtTransformer2DModel": {"num_layers": 1, "caption_channels": 4096},
    "WanTransformer3DModel": {"num_layers": 1},
    "HunyuanVideoTransformer3DModel": {"num_layers": 1, "num_single_layers": 1},
    "LTXVideoTransformer3DModel": {"num_layers": 1},
    "QwenImageTransformer2DModel": {"num_layers": 1},
    "CogVideoXTransformer3DModel": {"num_layers": 1},
    "SanaTransformer2DModel": {"num_layers": 1},
    "Lumina2Transformer2DModel": {"num_layers": 1},
    "CogView4Transformer2DModel": {"num_layers": 1},
    "AutoencoderKL": {},
    "AutoencoderKLWan": {},
}


@pytest.mark.parametrize("kind", mostly_slow(DENOISERS, {"FluxTransformer2DModel"}))
@pytest.mark.parametrize("mode", mostly_slow(("inference", "train"), {"inference"}, {"train"}))
def test_networks_of_diffusers(kind: str, mode: str, tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": kind, **DENOISERS[kind]}))
    graph = load_programs(model=f"diffusers:{tmp_path}", mode=mode, image=16, batch=2)[0].graph
    sample = next(i for i in range(graph.n) if graph.op_name[i] in ("input.hidden_states", "input.sample"))
    assert graph.shape(int(graph.outputs(sample)[0]))[0] == 2
    assert (graph.phase == 2).any() == (mode == "train")


SDXL = {
    "addition_embed_type": "text_time", "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 16 + 6 * 8,
    "cross_attention_dim": 16, "block_out_channels": [32, 64], "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "layers_per_block": 1, "sample_size": 16,
}  # fmt: skip


@pytest.mark.slow
def test_a_unet_that_takes_the_whole_prompt_and_sizes(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DConditionModel", **SDXL}))
    graph = load_programs(model=f"diffusers:{tmp_path}", batch=2)[0].graph
    shapes = {n: graph.shape(int(graph.outputs(i)[0])) for i, n in enumerate(graph.op_name) if "added_cond" in n}
    assert shapes == {"input.added_cond_kwargs.text_embeds": (2, 16), "input.added_cond_kwargs.time_ids": (2, 6)}


def test_one_thread_at_a_time_builds_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of torch that are replaced meanwhile would otherwise stay replaced, or be missing in the other thread."""
    inside, most = [], []

    def network(asked: Any, source: str) -> Any:
        inside.append(asked)
        time.sleep(0.05)
        most.append(len(inside))
        inside.remove(asked)
        raise ImporterError("enough", "")

    monkeypatch.setattr(images, "network", network)
    threads = [threading.Thread(target=suppressed, args=(f"timm:{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


def suppressed(model: str) -> None:
    """Import a model without its error."""
    with contextlib.suppress(ImporterError):
        load_programs(model=model)


WAN = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 24, "ffn_dim": 32, "text_dim": 16}
COG = {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 16, "text_embed_dim": 16, "sample_frames": 17,
       "sample_height": 8, "sample_width": 12}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "config", "shapes"),
    [
        ("WanTransformer3DModel", {**WAN, "in_channels": 36, "image_dim": 8, "added_kv_proj_dim": 48},
         {"hidden_states": (1, 36, 13, 16, 16), "encoder_hidden_states_image": (1, 257, 8)}),
        ("CogVideoXTransformer3DModel", {**COG, "in_channels": 32, "patch_size_t": 2, "ofs_embed_dim": 512,
                                         "use_rotary_positional_embeddings": True},
         {"hidden_states": (1, 6, 32, 16, 16), "ofs": (1,), "image_rotary_emb.0": (3 * 8 * 8, 16)}),
    ],
    ids=["wan", "cogvideox1.5"],
)  # fmt: skip
def test_videos_that_continue_a_picture(
    kind: str, config: dict[str, Any], shapes: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    pytest.importorskip("diffusers")
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": kind, **config}))
    for mode in ("inference", "train"):  # the noise that is predicted has fewer channels than the sample
        graph = load_programs(model=f"diffusers:{tmp_path}", mode=mode, image=16)[0].graph
        for name, shape in shapes.items():
            assert graph.shape(int(graph.outputs(graph.op_name.index(f"input.{name}"))[0])) == shape


@pytest.mark.slow
def test_an_input_that_nobody_can_make_up_is_named(tmp_path: Path) -> None:
    pytest.importorskip("diffusers")
    config = {"_class_name": "ZImageTransformer2DModel", "n_layers": 1, "dim": 256, "n_heads": 2, "n_kv_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ImporterError, match=r"ZImageTransformer2DModel takes 'x', which placekit cannot make up"):
        load_programs(model=f"diffusers:{tmp_path}")


@pytest.mark.long
@pytest.mark.slow
def test_flux_has_its_parameters_and_arithmetic(tmp_path: Path) -> None:
    """FLUX.1-dev has 11.90 billion; one image of 1024 x 1024 pixels is 4,096 samples, beside 512 tokens of the prompt."""
    pytest.importorskip("diffusers")
    (tmp_path / "config.json").write_text('{"_class_name": "FluxTransformer2DModel", "guidance_embeds": true}')
    graph = load_programs(model=f"diffusers:{tmp_path}", dtype="bfloat16")[0].graph
    assert graph.persistent_bytes[graph.op_type.is_value("parameter")].sum() == 2 * 11_901_408_320
    width, tokens = 3072, 4096 + 512
    double = 4 * tokens * width**2 + 8 * tokens * width**2  # attention's projections, and the network behind it
    single = 3 * tokens * width**2 + 4 * tokens * width**2 + 5 * tokens * width**2
    attention = 2 * tokens**2 * width
    assert graph.flops.sum() == pytest.approx(2 * (19 * double + 38 * single + 57 * attention), rel=0.02)


@pytest.mark.slow
def test_a_network_without_a_classifier_is_trained_with_one() -> None:
    pytest.importorskip("timm")
    with pytest.warns(
        UserWarning, match="eva02_tiny_patch14_224 has no classifier: it is trained with one of 1,000 classes"
    ):
        graph = load_programs(model="timm:eva02_tiny_patch14_224", mode="train")[0].graph
    assert "head.weight" in graph.op_name


PARAMETERS = {
    "meta-llama/Llama-3.1-8B": 8_030_261_248, "meta-llama/Meta-Llama-3-70B": 70_553_706_496, "Qwen/Qwen3-8B": 8_190_735_360,
    "google/gemma-3-1b-it": 999_885_952, "mistralai/Mixtral-8x7B-v0.1": 46_702_792_704,
    "openai-community/gpt2": 124_439_808, "google-bert/bert-base-uncased": 109_514_298, "google-t5/t5-base": 222_903_552,
    "openai/whisper-large-v3": 1_543_490_560, "google/vit-base-patch16-224": 86_567_656,
    "stable-diffusion-v1-5/stable-diffusion-v1-5/unet": 859_520_964,
}  # fmt: skip


def test_the_readme_lists_the_package() -> None:
    assert set(shipped()) == set(PARAMETERS)
    text = (Path(__file__).parent.parent / "README.md").read_text()
    assert all(f"| `{name}` | {number:,} |" in text for name, number in PARAMETERS.items())


@pytest.mark.parametrize("name", mostly_slow(sorted(PARAMETERS), [], sorted(PARAMETERS)[1:]))
def test_every_configuration_is_imported(name: str) -> None:
    prefix = "diffusers" if name.endswith("/unet") else "hf"
    pytest.importorskip({"hf": "transformers"}.get(prefix, prefix))
    graph = load_programs(model=f"{prefix}:{name}", dtype="float32")[0].graph
    stored = graph.persistent_bytes[graph.op_type.is_value("parameter")].sum()
    assert stored == 4 * PARAMETERS[name]


def test_from_python(tmp_path: Path) -> None:
    (tmp_path / "own_place_model.py").write_text(OWN)
    result = place(model=f"{tmp_path}/own_place_model.py:step", mode="inference", policy="single_device")
    assert result.value_s
