"""Models of transformers from tiny configurations on disk: caches, arithmetic, bytes, and equality with transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from placekit_models.options import Asked
from placekit_testing.sequential import run_sequential
from placekit_torch import Step
from torch.utils.flop_counter import FlopCounterMode

from placekit_core import Graph, ImporterError, Program, load_programs

pytest.importorskip("transformers")
from placekit_models.language import network
from placekit_models.quantized import QuantizedLinear

torch.set_num_threads(1)  # the tensors are small, and tests run side by side

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61,
    "max_position_embeddings": 64, "dtype": "bfloat16",
}  # fmt: skip
GEMMA = {
    **LLAMA, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    **LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 16, "d_kv": 4, "d_ff": 24,
    "num_layers": 2, "num_heads": 2, "vocab_size": 31, "decoder_start_token_id": 0,
}  # fmt: skip
WHISPER = {
    "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "d_model": 16, "encoder_layers": 1,
    "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24, "num_mel_bins": 8, "vocab_size": 31, "max_source_positions": 10, "max_target_positions": 12,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip
BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 31, "max_position_embeddings": 20,
}  # fmt: skip
VIT = {
    "model_type": "vit", "architectures": ["ViTForImageClassification"], "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8, "num_labels": 5,
}  # fmt: skip


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """The program of a configuration, with options."""

    def loaded(config: dict[str, Any], **options: Any) -> Program:
        (tmp_path / "config.json").write_text(json.dumps(config))
        [program] = load_programs(model=f"hf:{tmp_path}", **options)
        return program

    return loaded


def made(folder: Path, mode: Any, batch: int = 1, context: int = 8) -> Step:
    """The step of the configuration in a folder, with real weights."""
    asked = Asked(name=str(folder), mode=mode, batch=batch, context=context, dtype=None, weights=None, image=None)
    step = network(asked, "hf").make()
    assert isinstance(step, Step)
    return step


def named(graph: Graph, *endings: str) -> dict[str, int]:
    """Persistent bytes of the sources with these endings, by name."""
    return {n: int(b) for n, b in zip(graph.op_name, graph.persistent_bytes, strict=True) if n.endswith(endings)}


def numbers(graph: Graph, width: int) -> int:
    """Parameters of `width` bytes each."""
    return int(graph.persistent_bytes[graph.op_type.is_value("parameter")].sum()) // width


@pytest.mark.parametrize("batch", [1, 3])
def test_decode_keeps_keys_and_values_per_layer(load: Any, batch: int) -> None:
    graph = load(LLAMA, mode="decode", batch=batch, context=32).graph
    kept = named(graph, "key_cache", "value_cache")
    layer = 2 * 8 * 32 * 2 * batch  # heads of keys x width x tokens x bytes
    assert kept == {f"model.layers.{i}.self_attn.{k}_cache": layer for i in (0, 1) for k in ("key", "value")}
    for name in kept:  # the new cache shares memory and device with the old one
        source = graph.op_name.index(name)
        [new] = [t for t in range(graph.t) if graph.tensor_storage[t] == graph.outputs(source)[0] != t]
        write = int(graph.tensor_producer[new])
        assert graph.colocate[write] == graph.colocate[source] >= 0
        assert graph.bytes_accessed[write] == 2 * layer / 32 + 8  # one token read and written, and where it goes


def test_a_decoded_token_costs_two_operations_per_weight_and_attention(load: Any) -> None:
    wide = {**LLAMA, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "vocab_size": 512}
    graph = load(wide, mode="decode", batch=2, context=64).graph
    weights = numbers(graph, 2) - 512 * 256  # without the embedding, which is looked up
    attention = 2 * 2 * 4 * 64 * 64 * 2  # layers, products, heads, width, tokens, a multiply-add counts 2
    expected = 2 * (2 * weights + attention)
    assert expected <= graph.flops.sum() <= 1.02 * expected


def test_a_sliding_window_is_all_that_its_layer_keeps(load: Any) -> None:
    graph = load(GEMMA, mode="decode", context=32).graph
    assert [b // (2 * 8 * 2) for b in named(graph, "key_cache").values()] == [4, 32]
    short = load(GEMMA, mode="prefill", context=3).graph
    assert [b // (2 * 8 * 2) for b in named(short, "key_cache").values()] == [3, 3]


@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["llama", "gemma"])
def test_prefill_then_decode_is_the_whole_pass(config: dict[str, Any], tmp_path: Path) -> None:
    """The logits of the last token by a prefilled cache are those of the model of transformers without any cache."""
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    tokens = torch.randint(0, 61, (2, 9))
    lengths: dict[Any, int] = {"inference": 9, "prefill": 8, "decode": 9}
    whole, before, last = (made(tmp_path, mode, batch=2, context=n) for mode, n in lengths.items())
    for other in (before, last):
        other.module.load_state_dict(whole.module.state_dict(), strict=False)
    with torch.no_grad():
        expected = whole.module.eval()(input_ids=tokens)
        before.module.eval()(input_ids=tokens[:, :8])
        filled = dict(before.module.named_buffers())
        for name, buffer in last.module.named_buffers():
            if name.endswith(("key_cache", "value_cache")):
                kept = filled[name][:, :, -buffer.shape[2] :]
                slots = torch.arange(8 - kept.shape[2], 8) % buffer.shape[2]  # a full window is a ring
                buffer[:, :, slots] = kept
        found = last.module.eval()(input_ids=tokens[:, 8:])
    torch.testing.assert_close(found[:, -1], expected[:, -1])


@pytest.mark.parametrize("mode", ["train", "prefill", "decode", "inference"])
def test_executed_it_is_what_transformers_computes(load: Any, mode: Any, tmp_path: Path) -> None:
    program = load({**LLAMA, "num_hidden_layers": 1, "dtype": "float32"}, mode=mode, context=6)
    assert program.executable is not None
    after, results = run_sequential(program, program.executable.initial())
    torch.manual_seed(0)
    step = made(tmp_path, mode, context=6)
    with torch.set_grad_enabled(mode == "train"):
        expected = step.module.train(mode == "train")(**step.inputs)
    torch.testing.assert_close(next(iter(results.values())), expected.detach())
    for name, buffer in step.module.named_buffers():
        if name.endswith("_cache"):
            [tensor] = program.graph.outputs(program.graph.op_name.index(name))
            torch.testing.assert_close(after[tensor], buffer)


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        (T5, "inference"),
        pytest.param(T5, "train", marks=pytest.mark.slow),
        pytest.param(WHISPER, "train", marks=pytest.mark.slow),
        pytest.param(BERT, "train", marks=pytest.mark.slow),
    ],
)
def test_arithmetic_is_that_of_transformers(load: Any, config: dict[str, Any], mode: Any, tmp_path: Path) -> None:
    graph = load(config, mode=mode, batch=2, context=8, attention="math", optimizer_kernels="single").graph
    step = made(tmp_path, mode, batch=2, context=8)
    step.module.train(mode == "train")
    counter = FlopCounterMode(display=False)
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        result = step.module(**step.inputs)
        if mode == "train":
            result.backward()
    products = np.isin(graph.op_class.tolist(), ["matmul", "convolution"])
    assert float(graph.flops[products].sum()) == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.slow
def test_an_encoder_fills_cross_attention_once(load: Any) -> None:
    fill, token = (load(T5, mode=mode, context=16).graph for mode in ("prefill", "decode"))
    assert named(fill, "_cache") == named(token, "_cache")
    assert set(named(fill, "_cache").values()) == {2 * 4 * 16 * 4}
    encoder = [g.op_class.is_value("matmul") & np.char.startswith(g.module.tolist(), "encoder") for g in (fill, token)]
    assert encoder[0].sum() > 0
    assert encoder[1].sum() == 0
    whisper = load(WHISPER, mode="decode").graph
    assert sorted(b // (2 * 8 * 4) for b in named(whisper, "key_cache").values()) == [10, 12]


def test_one_token_reads_the_experts_that_it_chose(load: Any) -> None:
    def experts(batch: int) -> float:
        graph = load(MIXTRAL, mode="decode", batch=batch, context=8).graph
        products = [i for i in range(graph.n) if "grouped_mm" in graph.op_type[i]]
        assert len(products) == 4
        read = [graph.bytes_accessed[i] for i in products if graph.module[i].startswith("model.layers.0")]
        small = batch * 2 * 2 * (32 + 96 + 48 + 32) + 2 * 8 * 4  # rows, and where those of each expert end
        return float(sum(read) - small)

    one = 3 * 32 * 48 * 2  # bytes of an expert
    assert experts(1) == pytest.approx(2 * one, abs=4)
    assert experts(3) == pytest.approx(8 * (1 - 0.75**3) * one, abs=4)


@pytest.mark.parametrize(("weights", "row"), [("int8", 1024 + 2), ("int4", 512 + 8 * 2)])
def test_quantised_weights_count_their_bytes(load: Any, weights: str, row: int) -> None:
    wide = {**LLAMA, "hidden_size": 1024}
    graph = load(wide, mode="decode", context=8, weights=weights).graph
    [query] = [i for i in range(graph.n) if graph.op_name[i] == "model.layers.0.self_attn.q_proj/quantized_linear"]
    stored = named(graph, "0.self_attn.q_proj.weight", "0.self_attn.q_proj.scales")
    assert sum(stored.values()) == 32 * row
    assert graph.bytes_accessed[query] == 32 * row + 2 * (1024 + 32)
    assert graph.flops[query] == 2 * 1024 * 32
    assert graph.op_class[query] == "matmul"
    assert named(graph, "lm_head.weight") == {"lm_head.weight": 61 * 1024 * 2}


def test_quantised_weights_are_multiplied_as_if_unpacked() -> None:
    for bits in (4, 8):
        layer = QuantizedLinear(torch.nn.Linear(256, 3), bits)
        signed = layer.weight.view(torch.int8)
        if bits == 4:
            signed = torch.stack([layer.weight & 15, layer.weight >> 4], -1).flatten(1).to(torch.int8) - 8
        scale = layer.scales.repeat_interleave(256 // layer.scales.shape[1], 1)
        x = torch.randn(2, 256)
        torch.testing.assert_close(layer(x), x @ (signed * scale).T + layer.bias)


def test_a_configuration_may_say_that_weights_are_quantised(load: Any) -> None:
    awq = {**LLAMA, "hidden_size": 128, "quantization_config": {"quant_method": "awq", "bits": 4}}
    assert load(awq, context=8).graph.op_type.is_value("placekit.quantized_linear").sum() == 2 * 7
    odd = {**LLAMA, "quantization_config": {"quant_method": "mxfp4"}}
    with pytest.raises(ImporterError, match="quantised by 'mxfp4' with None bits are not modelled"):
        load(odd)


def test_a_network_has_the_name_of_the_folder_of_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    settings: dict[str, Any] = dict.fromkeys(("context", "dtype", "weights", "image"))
    for name in (tmp_path, tmp_path / "config.json"):
        asked = Asked(name=str(name), mode="inference", batch=1, **settings)
        assert network(asked, "hf").name == tmp_path.name


def test_defaults(load: Any) -> None:
    graph = load(LLAMA).graph
    assert graph.name.endswith(".decode")
    assert set(named(graph, "key_cache").values()) == {2 * 8 * 64 * 2}  # as many tokens as the network takes
    assert load(BERT).graph.name.endswith(".inference")
    image = load(VIT).graph
    assert named(image, "pixel_values") == {"input.pixel_values": 3 * 16 * 16 * 4}


def test_an_encoder_decoder_of_images_takes_no_tokens(load: Any) -> None:
    sizes = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    backbone = {
        "model_type": "resnet",
        "hidden_sizes": [8],
        "depths": [1],
        "embedding_size": 8,
        "out_features": ["stage1"],
    }
    config = {"model_type": "detr", "architectures": ["DetrForObjectDetection"], "use_timm_backbone": False,
              "backbone_config": backbone, **sizes, **heads}  # fmt: skip
    graph = load(config, image=32).graph
    assert list(named(graph, "pixel_values")) == ["input.pixel_values"]
    assert not named(graph, "input_ids")


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (BERT, {"mode": "decode"}, "BertForMaskedLM generates no text, so it has no mode=decode"),
        (VIT, {"context": 3}, "takes images, so it has no context"),
        (LLAMA, {"context": 65}, "context=65, but .* takes 64 tokens at most"),
        (LLAMA, {"mode": "train", "weights": "int4"}, "weights of 4 bits are not trained"),
        (MIXTRAL, {"weights": "int4"}, "holds the weights of several experts"),
        ({"hidden_size": 3}, {}, "has no `model_type`, so it is not"),
        ({"model_type": "lama"}, {}, "no model_type named 'lama' in this transformers\n  did you mean 'llama'"),
        ({"model_type": "own", "auto_map": {}}, {}, "code that comes with a model is never run"),
        ({"_class_name": "UNet2DModel"}, {}, "is a model of diffusers"),
        ({**LLAMA, "hidden_size": "x"}, {}, "transformers refuses the configuration"),
        ({**LLAMA, "intermediate_size": -4}, {}, "no LlamaForCausalLM can be built as .* negative dimension -4"),
        ({**LLAMA, "vocab_size": 0}, {}, "no LlamaForCausalLM can be built as"),
        ({**LLAMA, "num_key_value_heads": 3}, {}, "LlamaForCausalLM does not run as .* says"),
        (
            {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 16},
            {},
            "it keeps the state of a recurrence.*\n  mode=inference is the pass over a whole sequence",
        ),
        ({**LLAMA, "quantization_config": "gptq"}, {}, "`quantization_config` is 'gptq', not a mapping"),
    ],
)
def test_mistakes(load: Any, config: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ImporterError, match=message):
        load(config, **options)
