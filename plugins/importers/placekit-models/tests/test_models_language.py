"""Models of transformers from tiny configurations on disk: caches, arithmetic, bytes, and equality with transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from placekit_models.importer import ModelImporter
from placekit_models.options import Asked, ModelOptions
from placekit_models.shipped import full_names
from placekit_testing.children import in_children
from placekit_testing.importers import loaded_digest
from placekit_testing.sequential import run_sequential
from placekit_torch import Step
from torch.utils.flop_counter import FlopCounterMode

from placekit_core import PHASES, Graph, Importer, ImporterError, Program, load_programs

pytest.importorskip("transformers")
from placekit_models.language import network
from placekit_models.quantized import INT4, INT8, QuantizedLinear, quantized_grouped_mm

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


GPT_OSS = {
    **LLAMA, "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "architectures": ["FalconForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "multi_query": True, "new_decoder_architecture": False, "alibi": False, "vocab_size": 61,
}  # fmt: skip
BART = {
    "model_type": "bart", "architectures": ["BartForConditionalGeneration"], "d_model": 16, "encoder_layers": 1,
    "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24, "vocab_size": 31, "max_position_embeddings": 20,
}  # fmt: skip
GEMMA_AND_IMAGES = {
    "model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 4,
    "text_config": {**GEMMA, "architectures": None},
    "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "image_size": 16, "patch_size": 8},
}  # fmt: skip


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """The program of a configuration, with options."""

    def loaded(config: dict[str, Any], **options: Any) -> Program:
        (tmp_path / "config.json").write_text(json.dumps(config))
        [program] = load_programs(model=f"hf:{tmp_path}", **options)
        return program

    return loaded


def made(folder: Path, mode: Any, batch: int = 1, context: int = 8, image: int | None = None) -> Step:
    """The step of the configuration in a folder, with real weights."""
    asked = Asked(name=str(folder), mode=mode, batch=batch, context=context, dtype=None, weights=None, image=image)
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
    assert ({*graph.attributes["cache"]}, graph.attributes["context"]) == ({*kept}, 32)
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


@pytest.mark.slow
def test_a_sliding_window_is_all_that_its_layer_keeps(load: Any) -> None:
    graph = load(GEMMA, mode="decode", context=32).graph
    assert [b // (2 * 8 * 2) for b in named(graph, "key_cache").values()] == [4, 32]
    short = load(GEMMA, mode="prefill", context=3).graph
    assert [b // (2 * 8 * 2) for b in named(short, "key_cache").values()] == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (GPT_OSS, [4, 4, 32, 32]),  # no fused attention: its mask has a column per token of the context
        (FALCON, [16, 16, 16, 16]),  # one head of two; it compares the name of the attention with "sdpa"
    ],
    ids=["gpt_oss", "falcon"],
)
def test_classes_with_attention_of_their_own_decode(load: Any, config: dict[str, Any], kept: list[int]) -> None:
    graph = load(config, mode="decode", context=32).graph
    width = 2 * 8 if config is GPT_OSS else 8 * 2
    per_token = width * (2 if config is GPT_OSS else 4)
    assert sorted(b for b in named(graph, "key_cache", "value_cache").values()) == sorted(n * per_token for n in kept)


@pytest.mark.parametrize("mode", ["prefill", pytest.param("decode", marks=pytest.mark.slow)])
def test_code_that_reads_values_on_the_way_to_a_cache(load: Any, mode: str) -> None:
    graph = load(BART, mode=mode, context=12).graph
    assert len(named(graph, "key_cache")) == 2
    assert set(named(graph, "_cache").values()) == {2 * 8 * 12 * 4}


@pytest.mark.slow
def test_the_graph_does_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """Gemma 3 makes its masks in the order of a set of strings."""
    (tmp_path / "config.json").write_text(json.dumps(GEMMA_AND_IMAGES))
    model = ModelImporter(ModelOptions(model=f"hf:{tmp_path}", mode="decode", context=12))
    assert len(set(in_children(model, loaded_digest, hash_seeds=(1, 2, 3)))) == 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("model", full_names())
def test_shipped_configurations_do_not_depend_on_the_hash_seed(model: str) -> None:
    importer = ModelImporter(ModelOptions(model=model))
    assert len(set(in_children(importer, fingerprints, hash_seeds=(1, 2, 3)))) == 1


def fingerprints(importer: Importer) -> str:
    """Those of the programs that an importer loads."""
    return ",".join(program.graph.fingerprint for program in importer.load())


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


@pytest.mark.parametrize(
    ("config", "options", "row", "scale"),
    [
        (MIXTRAL, {"weights": "int8"}, 128, 2),
        (MIXTRAL, {"weights": "int4"}, 64, 2),
        ({**MIXTRAL, "quantization_config": {"quant_method": "fp8"}}, {}, 128, 2),
        (
            {**GPT_OSS, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}},
            {},
            64,
            4,
        ),
    ],
    ids=["int8", "int4", "fp8", "mxfp4"],
)
def test_quantised_experts_count_their_bytes(
    load: Any, config: dict[str, Any], options: dict[str, Any], row: int, scale: int
) -> None:
    wide = {**config, "hidden_size": 128, "intermediate_size": 128, "num_local_experts": 4}
    graph = load(wide, mode="decode", context=8, **options).graph
    kept = named(graph, "0.mlp.experts.gate_up_proj", "0.mlp.experts.gate_up_proj_scales")
    assert sorted(kept.values()) == [4 * 256 * scale, 4 * 256 * row]
    product = next(i for i in range(graph.n) if graph.op_name[i].endswith("layers.0.mlp.experts/quantized_grouped_mm"))
    two_of_four = 2 * 256 * (row + scale)
    assert graph.bytes_accessed[product] == two_of_four + 2 * 2 * (128 + 256) + 4 * 4
    assert graph.flops[product] == 2 * 2 * 128 * 256
    linear = graph.op_type.is_value("placekit.quantized_linear").sum()
    assert linear == (0 if config["model_type"] == "gpt_oss" else 2 * 4)


def test_modules_that_a_configuration_leaves_out_are_not_quantised(load: Any) -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "modules_to_not_convert": ["model.layers.*.self_attn", "down_proj"]}
    for left_out in (["self_attn", "mlp.down_proj"], gptq["modules_to_not_convert"]):
        config = {**gptq, "group_size": -1, "modules_to_not_convert": left_out}
        graph = load({**LLAMA, "quantization_config": config}, context=8).graph
        quantised = [graph.op_name[i] for i in range(graph.n) if graph.op_type[i] == "placekit.quantized_linear"]
        assert {name.rpartition("/")[0].rpartition(".")[2] for name in quantised} == {"gate_proj", "up_proj"}
    with pytest.raises(ImporterError, match="`quantization_config` has group_size '128'"):
        load({**LLAMA, "quantization_config": {**gptq, "group_size": "128"}})
    assert set(named(graph, "gate_proj.scales").values()) == {48 * 2}  # one for each row


def test_quantised_weights_are_multiplied_as_if_unpacked() -> None:
    for bits in (4, 8):
        layer = QuantizedLinear(torch.nn.Linear(256, 3), INT4 if bits == 4 else INT8)
        signed = layer.weight.view(torch.int8)
        if bits == 4:
            signed = torch.stack([layer.weight & 15, layer.weight >> 4], -1).flatten(1).to(torch.int8) - 8
        scale = layer.scales.repeat_interleave(256 // layer.scales.shape[1], 1)
        x = torch.randn(2, 256)
        torch.testing.assert_close(layer(x), x @ (signed * scale).T + layer.bias)
        packed, scales = (torch.stack([t, t.flip(0)]) for t in (layer.weight, layer.scales))
        grouped = quantized_grouped_mm(x, packed, scales, torch.tensor([1, 2], dtype=torch.int32), bits)
        torch.testing.assert_close(
            grouped,
            torch.stack([layer(x)[0], layer(x)[1].flip(0)])
            - layer.bias.new_tensor(0)
            - torch.stack([layer.bias, layer.bias.flip(0)]),
        )


def test_a_configuration_may_say_that_weights_are_quantised(load: Any) -> None:
    awq = {**LLAMA, "hidden_size": 128, "quantization_config": {"quant_method": "awq", "bits": 4}}
    assert load(awq, context=8).graph.op_type.is_value("placekit.quantized_linear").sum() == 2 * 7
    odd = {**LLAMA, "quantization_config": {"quant_method": "hqq"}}
    with pytest.raises(
        ImporterError, match="does not know weights quantised by 'hqq'\n  give weights=int8 or weights=int4"
    ):
        load(odd)
    assert load(odd, context=8, weights="int4").graph.op_type.is_value("placekit.quantized_linear").sum() == 2 * 7


def test_a_network_has_the_name_of_the_folder_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    settings: dict[str, Any] = dict.fromkeys(("context", "dtype", "weights", "image"))
    for name in (tmp_path, tmp_path / "config.json", ".", "./", "config.json", f"../{tmp_path.name}"):
        asked = Asked(name=str(name), mode="inference", batch=1, **settings)
        assert network(asked, "hf").name == tmp_path.name


def test_defaults(load: Any) -> None:
    graph = load(LLAMA).graph
    assert graph.name.endswith(".decode")
    assert set(named(graph, "key_cache").values()) == {2 * 8 * 64 * 2}  # as many tokens as the network takes
    assert load(BERT).graph.name.endswith(".inference")
    image = load(VIT).graph
    assert named(image, "pixel_values") == {"input.pixel_values": 3 * 16 * 16 * 4}


ROBERTA = {
    **BERT, "model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "pad_token_id": 1,
}  # fmt: skip
WAV2VEC2 = {
    "model_type": "wav2vec2", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "conv_dim": [8], "conv_stride": [320], "conv_kernel": [400], "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer",
}  # fmt: skip
SPECTROGRAM = {
    "model_type": "audio-spectrogram-transformer", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_mel_bins": 16, "max_length": 32,
}  # fmt: skip
VIDEO = {**VIT, "model_type": "videomae", "num_frames": 4, "architectures": ["VideoMAEModel"]}


@pytest.mark.parametrize(
    ("config", "name", "elements"),
    [
        (ROBERTA, "input_ids", 20 - 2),  # its positions are counted from behind that of padding
        (WAV2VEC2, "input_values", 160_000),
        (SPECTROGRAM, "input_values", 32 * 16),
        (VIDEO, "pixel_values", 4 * 3 * 16 * 16),
    ],
    ids=["roberta", "wav2vec2", "spectrogram", "video"],
)
def test_inputs_have_the_sizes_that_networks_take(load: Any, config: dict[str, Any], name: str, elements: int) -> None:
    graph = load(config).graph
    [bytes_] = named(graph, name).values()
    assert bytes_ == elements * (8 if name == "input_ids" else 4)
    assert ("context" in graph.attributes) == (name == "input_ids")


@pytest.mark.parametrize("mode", ["prefill", "inference"])
def test_text_of_a_network_that_takes_images_is_placed_with_a_note(load: Any, mode: str) -> None:
    with pytest.warns(UserWarning, match="takes images, too, but this step has only text; image=512 adds"):
        graph = load(GEMMA_AND_IMAGES, mode=mode, context=4).graph
    assert not named(graph, "pixel_values")


TEXT: dict[str, Any] = {**LLAMA, "max_position_embeddings": 128}
GEMMA_SEES = {
    **GEMMA_AND_IMAGES,
    "text_config": {**TEXT, "model_type": "gemma3_text"},
    "image_token_index": 50,
    "boi_token_index": 51,
    "eoi_token_index": 52,
}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
          "image_size": 16, "patch_size": 4}  # fmt: skip
LLAVA: dict[str, Any] = {
    "model_type": "llava", "text_config": TEXT, "image_token_index": 50,
    "vision_config": {**VISION, "model_type": "clip_vision_model", "projection_dim": 8, "num_hidden_layers": 2},
}  # fmt: skip
IDEFICS = {
    "model_type": "idefics3",
    "text_config": TEXT,
    "image_token_id": 50,
    "scale_factor": 2,
    "vision_config": VISION,
}
QWEN = {
    "model_type": "qwen2_5_vl", "image_token_id": 50, "video_token_id": 51, "vision_start_token_id": 52,
    "vision_end_token_id": 53,
    "text_config": {**TEXT, "model_type": "qwen2_5_vl_text",
                    "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
    "vision_config": {"hidden_size": 32, "depth": 2, "num_heads": 2, "intermediate_size": 24, "out_hidden_size": 32,
                      "fullatt_block_indexes": [1]},
}  # fmt: skip
MLLAMA = {
    "model_type": "mllama", "image_token_index": 50,
    "text_config": {**TEXT, "model_type": "mllama_text_model", "num_hidden_layers": 3, "cross_attention_layers": [1],
                    "pad_token_id": 0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_global_layers": 1,
                      "attention_heads": 2, "image_size": 16, "patch_size": 4, "vision_output_dim": 48,
                      "intermediate_layers_indices": [0, 1]},
}  # fmt: skip
BLIP2 = {
    "model_type": "blip-2", "num_query_tokens": 3, "image_token_index": 50, "vision_config": VISION,
    "architectures": ["Blip2ForConditionalGeneration"],
    "text_config": {"model_type": "opt", "vocab_size": 61, "hidden_size": 32, "ffn_dim": 24, "num_hidden_layers": 1,
                    "num_attention_heads": 2, "word_embed_proj_dim": 32},
    "qformer_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "encoder_hidden_size": 16},
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "tokens", "pixels"),
    [
        (LLAVA, 16, 3 * 16 * 16),  # patches of 4 x 4, of the image that is made 16 x 16
        (GEMMA_SEES, 4, 3 * 16 * 16),
        (QWEN, 4, 4 * 2 * 3 * 14 * 14 * 4),  # two by two patches of 14 become a token, and two frames a patch
        (IDEFICS, 4 * 17, 17 * 3 * 16 * 16),  # 4 x 4 tiles of 16 x 16, and the whole
        (BLIP2, 3, 3 * 16 * 16),
    ],
    ids=["llava", "gemma", "qwen", "idefics", "blip2"],
)
def test_an_image_is_tokens_of_its_sequence(load: Any, config: dict[str, Any], tokens: int, pixels: int) -> None:
    made = ", which its processor makes 16 x 16," if pixels == 3 * 16 * 16 else ""
    with pytest.warns(UserWarning, match=f"an image of 56 x 56{made} is {tokens} of the 72 tokens of each sequence"):
        graph = load({**config, "dtype": "float32"}, mode="inference", batch=2, context=72, image=56).graph
    assert named(graph, "pixel_values") == {"input.pixel_values": 2 * pixels * 4}
    assert named(graph, "input_ids") == {"input.input_ids": 2 * 72 * 8}
    with pytest.raises(ImporterError, match=rf"is {tokens} tokens of .*\n  give context={tokens + 64} or more"):
        load(config, mode="inference", context=tokens, image=56)


@pytest.mark.parametrize("config", [QWEN, LLAVA, IDEFICS, MLLAMA], ids=["qwen", "llava", "idefics", "mllama"])
def test_a_step_with_an_image_computes_what_transformers_does(
    load: Any, config: dict[str, Any], tmp_path: Path
) -> None:
    program = load({**config, "dtype": "float32"}, mode="prefill", context=72, image=56)
    assert program.executable is not None
    _, results = run_sequential(program, program.executable.initial())
    torch.manual_seed(0)
    step = made(tmp_path, "prefill", context=72, image=56)
    with torch.no_grad():
        expected = step.module.eval()(**step.inputs)
    torch.testing.assert_close(next(iter(results.values())), expected)


@pytest.mark.slow
def test_a_decoded_token_reads_the_image_in_the_cache(load: Any) -> None:
    text, seen = (load(LLAVA, mode="decode", context=60, **more).graph for more in ({}, {"image": 56}))
    assert text.fingerprint == seen.fingerprint
    blind, seen = (load(MLLAMA, mode="decode", context=60, **more).graph for more in ({}, {"image": 56}))
    kept = [b // (2 * 8 * 4) for b in named(seen, "key_cache").values()]
    assert kept == [60, 4 * (16 + 1), 60]  # keys of the image beside those of text: 4 tiles of 16 patches and a class
    assert len(named(blind, "key_cache")) == 2
    first = {**MLLAMA, "text_config": {**MLLAMA["text_config"], "cross_attention_layers": [0]}}
    for mode in ("decode", "prefill"):
        cached = named(load(first, mode=mode, context=60, image=56).graph, "key_cache")
        assert [b // (2 * 8 * 4) for b in cached.values()] == [4 * (16 + 1), 60, 60]
        assert next(iter(cached)) == "model.language_model.layers.0.cross_attn.key_cache"
    with pytest.raises(ImporterError, match="reads its image in every call, so it has no mode=decode"):
        load(BLIP2, mode="decode")


def test_tiles_of_an_image_are_those_of_the_configuration(load: Any) -> None:
    """LLaVA-NeXT: the whole, and 1 x 2 tiles; its processor would make tiles for the sizes of one model."""
    vision = {**LLAVA["vision_config"], "image_size": 16}
    config = {**LLAVA, "model_type": "llava_next", "vision_config": vision, "image_grid_pinpoints": [[16, 32]]}
    graph = load(config, mode="inference", context=72, image=16).graph
    assert named(graph, "pixel_values") == {"input.pixel_values": 3 * 3 * 16 * 16 * 4}


@pytest.mark.slow
def test_a_decoder_behind_an_encoder_of_images(load: Any) -> None:
    """As TrOCR, whose images have the size of its encoder."""
    gpt = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 31, "n_positions": 12}
    config = {"model_type": "vision-encoder-decoder", "encoder": VIT, "decoder": {**gpt, "add_cross_attention": True}}
    for image, patches in ((None, 4), (32, 16)):
        graph = load(config, mode="decode", image=image).graph
        assert [b // (2 * 8 * 4) for b in named(graph, "key_cache").values()] == [12, patches + 1]


QWEN_7B = {
    **QWEN, "dtype": "bfloat16", "image_token_id": 151655, "video_token_id": 151656, "tie_word_embeddings": False,
    "text_config": {"model_type": "qwen2_5_vl_text", "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064,
                    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
                    "rope_parameters": {"rope_type": "default", "mrope_section": [16, 24, 24]}},
    "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584},
}  # fmt: skip
LLAVA_7B = {
    "model_type": "llava", "dtype": "bfloat16",
    "text_config": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                    "num_attention_heads": 32, "vocab_size": 32064},
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
                      "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336, "patch_size": 14},
}  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "parameters", "flops"),
    [
        # 2,304 patches, of which 4 layers see all, and 28 those in a window of 64; four patches become a token
        (QWEN_7B, 8_292_166_656,
         2 * 2304 * (32 * (4 * 1280**2 + 3 * 1280 * 3420) + 2 * (4 * 2304 + 28 * 64) * 1280 + 1176 * 1280)
         + 2 * 576 * (5120**2 + 5120 * 3584)),
        # 576 patches and a class; the last of 24 layers is not read
        (LLAVA_7B, 7_063_427_072, 2 * 23 * 577 * (12 * 1024**2 + 2 * 577 * 1024)),
    ],
    ids=["qwen2.5-vl", "llava"],
)  # fmt: skip
def test_known_models_have_their_parameters_and_arithmetic(
    load: Any, config: dict[str, Any], parameters: int, flops: int
) -> None:
    with pytest.warns(UserWarning, match=r"an image of 672 x 672.* is 576 of the 1,024 tokens"):
        graph = load(config, mode="prefill", context=1024, image=672).graph
    assert numbers(graph, 2) == parameters
    vision = np.char.startswith(graph.module.tolist(), ("model.vis",))
    assert float(graph.flops[vision].sum()) == pytest.approx(flops, rel=0.01)


@pytest.mark.slow
def test_a_training_step_with_an_image_trains_its_encoder(load: Any) -> None:
    graph = load(QWEN, mode="train", context=40, image=56).graph
    backward = {m for m, phase in zip(graph.module, graph.phase, strict=True) if phase == PHASES.index("backward")}
    assert "model.visual.blocks.0.mlp.up_proj" in backward


def test_the_processor_of_a_folder_makes_the_image(load: Any, tmp_path: Path) -> None:
    settings = {"image_processor_type": "LlavaImageProcessor", "size": {"shortest_edge": 8}, "do_pad": False,
                "crop_size": {"height": 8, "width": 8}}  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    small = {**LLAVA, "vision_config": {**LLAVA["vision_config"], "image_size": 8}}
    assert named(load(small, mode="inference", context=9, image=56).graph, "pixel_values") == {
        "input.pixel_values": 3 * 8 * 8 * 4
    }


CLIP = {
    "model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 8, "vision_config": VISION,
    "text_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                    "vocab_size": 61, "max_position_embeddings": 12},
}  # fmt: skip
SPEECH = {**WAV2VEC2, "architectures": ["Wav2Vec2ForCTC"], "vocab_size": 32}
LONG_T5 = {**T5, "model_type": "longt5", "architectures": ["LongT5ForConditionalGeneration"], "local_radius": 3}
SEGFORMER = {
    "model_type": "segformer", "architectures": ["SegformerForSemanticSegmentation"], "depths": [1], "sr_ratios": [2],
    "num_encoder_blocks": 1, "hidden_sizes": [8], "patch_sizes": [7], "strides": [4], "num_attention_heads": [1],
    "mlp_ratios": [2], "decoder_hidden_size": 8, "num_labels": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "shapes"),
    [
        (CLIP, {"input_ids": (2, 12), "pixel_values": (2, 3, 16, 16)}),  # each text is compared with each image
        pytest.param(SPEECH, {"input_values": (2, 160_000), "labels": (2, 64)}, marks=pytest.mark.slow),
        pytest.param(
            LONG_T5, {"input_ids": (2, 24), "attention_mask": (2, 24), "labels": (2, 24)}, marks=pytest.mark.slow
        ),
        pytest.param(SEGFORMER, {"pixel_values": (2, 3, 224, 224), "labels": (2, 224, 224)}, marks=pytest.mark.slow),
    ],
    ids=["clip", "ctc", "longt5", "segmentation"],
)
def test_training_has_the_inputs_that_the_loss_reads(load: Any, config: dict[str, Any], shapes: dict[str, Any]) -> None:
    graph = load(config, mode="train", batch=2, **({"context": 24} if config is LONG_T5 else {})).graph
    found = {n.removeprefix("input."): i for i, n in enumerate(graph.op_name) if n.startswith("input.")}
    assert {n: graph.shape(int(graph.outputs(i)[0])) for n, i in found.items()} == shapes
    assert graph.phase.max() == PHASES.index("update")


def test_cross_attention_keeps_what_the_encoder_makes_of_sound(load: Any) -> None:
    """Speech2Text halves its frames twice."""
    sound = {
        **WHISPER, "model_type": "speech_to_text", "architectures": ["Speech2TextForConditionalGeneration"],
        "input_feat_per_channel": 8, "conv_channels": 16, "max_source_positions": 40,
    }  # fmt: skip
    kept = named(load(sound, mode="decode", context=6).graph, "key_cache").values()
    assert [b // (2 * 8 * 4) for b in kept] == [6, 10]


def test_a_layer_that_attends_to_itself_and_to_patches_keeps_both(load: Any) -> None:
    """Pix2Struct calls both modules `attention`."""
    text = {"hidden_size": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "vocab_size": 31}
    vision = {"hidden_size": 16, "patch_embed_hidden_size": 48, "d_ff": 24, "d_kv": 8, "num_hidden_layers": 1,
              "num_attention_heads": 2, "patch_size": 4}  # fmt: skip
    config = {"model_type": "pix2struct", "is_encoder_decoder": True, "text_config": text, "vision_config": vision,
              "architectures": ["Pix2StructForConditionalGeneration"]}  # fmt: skip
    kept = named(load(config, mode="decode", context=12).graph, "key_cache")
    assert [b // (2 * 8 * 4) for b in kept.values()] == [12, 2048]


def test_infinities_as_transformers_writes_them(load: Any) -> None:
    mamba = {"model_type": "mamba2", "hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 31, "num_heads": 4, "head_dim": 8,
             "n_groups": 1, "state_size": 4}  # fmt: skip
    limit = {"time_step_limit": [0.0, {"__float__": "Infinity"}]}
    one, two = (load({**mamba, **more}, mode="inference", context=8).graph for more in ({}, limit))
    assert one.fingerprint == two.fingerprint


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
        (
            {**MLLAMA, "text_config": {**MLLAMA["text_config"], "pad_token_id": 99}},
            {"image": 56},
            "MllamaForConditionalGeneration cannot be built from the configuration of .*: Padding_idx must be within",
        ),
        (BERT, {"mode": "decode"}, "BertForMaskedLM generates no text, so it has no mode=decode"),
        (VIT, {"context": 3}, "takes images, so it has no context"),
        (LLAMA, {"image": 224}, "LlamaForCausalLM takes no images"),
        (LLAMA, {"context": 65}, "context=65, but .* takes 64 tokens at most"),
        (LLAMA, {"mode": "train", "weights": "int4"}, "weights of 4 bits are not trained"),
        ({"hidden_size": 3}, {}, "has no `model_type`, so it is not"),
        ({"model_type": "lama"}, {}, "no model_type named 'lama' in this transformers\n  did you mean 'llama'"),
        ({"model_type": "own", "auto_map": {}}, {}, "code that comes with a model is never run"),
        ({"_class_name": "UNet2DModel"}, {}, "is a model of diffusers"),
        ({**LLAMA, "hidden_size": "x"}, {}, "transformers refuses the configuration"),
        (
            {**LLAMA, "intermediate_size": -4},
            {},
            "LlamaForCausalLM cannot be built from the configuration of .* negative dimension -4",
        ),
        ({**LLAMA, "vocab_size": 0}, {}, "LlamaForCausalLM cannot be built from the configuration of"),
        ({**LLAMA, "num_key_value_heads": 3}, {}, "LlamaForCausalLM does not run with the configuration of"),
        (
            {
                "model_type": "recurrent_gemma",
                "hidden_size": 16,
                "num_hidden_layers": 3,
                "num_attention_heads": 1,
                "vocab_size": 16,
                "intermediate_size": 16,
                "lru_width": 16,
                "block_types": ["recurrent", "recurrent", "attention"],
            },
            {},
            "it keeps the state of a recurrence or convolution",
        ),
        (
            {
                "model_type": "lfm2",
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "vocab_size": 16,
                "num_key_value_heads": 1,
                "intermediate_size": 16,
                "layer_types": ["conv", "full_attention"],
            },
            {},
            "it keeps the state of a recurrence or convolution",
        ),
        (
            {"model_type": "mamba", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 16},
            {},
            "it keeps the state of a recurrence.*\n  plan it as llama.cpp runs it, with checkpoint=",
        ),
        ({**LLAMA, "quantization_config": "gptq"}, {}, "`quantization_config` is 'gptq', not a mapping"),
        (
            WAV2VEC2,
            {"mode": "train"},
            r'computes no loss\n  use mode=inference, or name .* "architectures": \["Wav2Vec2ForCTC"\] \(or Wav2Vec2ForSeq',
        ),
        (
            {**VIT, "model_type": "yolos", "architectures": ["YolosForObjectDetection"], "image_size": [16, 16]},
            {"mode": "train"},
            "the loss of YolosForObjectDetection matches objects to targets",
        ),
        (
            {**IDEFICS, "scale_factor": 3},
            {"mode": "inference", "image": 56},
            "does not take the images of its processor: shape",
        ),
    ],
)
def test_mistakes(load: Any, config: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ImporterError, match=message):
        load(config, **options)
