"""Imports many architectures of transformers, diffusers and timm in every mode, and counts how many import.

    python benchmarks/architectures.py [--write] [--only NAME ...] [LIBRARY ...]

LIBRARY is text, encoder_decoder, encoder, images_and_text, diffusers or timm. Models of transformers and diffusers are built from
the default configuration of their class, with two layers and random weights; networks of timm are built by name. Failures are
printed with their errors. `--write` writes the counts and the errors to benchmarks/results/architectures.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from placekit_models.extras import library

from placekit_core import PlacekitError, load_programs

RESULTS = Path(__file__).parent / "results" / "architectures.md"
LIMIT_S = 150
TRANSFORMERS: dict[str, tuple[tuple[str, ...], str]] = {
    "text": (
        ("decode", "prefill", "train"),
        "llama qwen2 qwen3 qwen2_moe qwen3_moe qwen3_next mistral ministral mixtral gemma gemma2 gemma3_text gemma3n_text phi"
        " phi3 phimoe gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom falcon mpt starcoder2 cohere cohere2 olmo olmo2 olmo3"
        " olmoe granite granitemoe granitemoeshared deepseek_v2 deepseek_v3 gpt_oss glm glm4 glm4_moe exaone4 smollm3 stablelm"
        " nemotron persimmon codegen dbrx jetmoe llama4_text minimax hunyuan_v1_dense ernie4_5 ernie4_5_moe dots1 seed_oss arcee"
        " apertus biogpt xglm longcat_flash recurrent_gemma mamba2 jamba lfm2 falcon_h1 bamba zamba2 granitemoehybrid diffllama"
        " helium bitnet",
    ),
    "encoder_decoder": (
        ("decode", "prefill", "train"),
        "t5 mt5 umt5 bart mbart pegasus marian blenderbot m2m_100 nllb-moe longt5 led plbart prophetnet bigbird_pegasus fsmt"
        " t5gemma switch_transformers whisper speech_to_text moonshine pix2struct udop",
    ),
    "encoder": (
        ("inference", "train"),
        "bert roberta xlm-roberta distilbert albert electra deberta deberta-v2 mpnet camembert modernbert convbert funnel"
        " nystromformer big_bird longformer roformer squeezebert mobilebert xlnet esm vit deit beit swin swinv2 convnext"
        " convnextv2 resnet regnet dinov2 segformer mobilevit efficientnet poolformer levit clip siglip kosmos-2 sam2 wav2vec2"
        " wav2vec2-bert hubert parakeet_ctc data2vec-audio detr layoutlmv3 audio-spectrogram-transformer videomae timesformer"
        " upernet",
    ),
    "images_and_text": (
        ("decode", "prefill", "train"),
        "qwen2_5_vl qwen3_vl smolvlm gemma3 llava idefics3 internvl paligemma mllama aya_vision mistral3 blip-2"
        " instructblip",
    ),
}
"""Modes and model types of transformers."""
DEPTHS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers",
)  # fmt: skip
"""Options for numbers of layers; each is set to 2."""
CHANGED: dict[str, dict[str, Any]] = {
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "hunyuan_v1_dense": {"head_dim": 128},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "deepseek_v2": {"num_experts_per_tok": 6, "n_routed_experts": 64},
    "gemma3n_text": {"num_hidden_layers": None},
    "esm": {"vocab_size": 33, "pad_token_id": 1},
    "convnext": {"num_hidden_layers": None, "num_layers": None},
    "convnextv2": {"num_hidden_layers": None, "num_layers": None},
    "qwen2_5_vl": {"vision_config": {"out_hidden_size": 8192, "depth": 2}},
    "qwen3_vl": {"vision_config": {"out_hidden_size": 4096, "depth": 9}},
    "smolvlm": {"vision_config": {"image_size": 512, "patch_size": 16}, "scale_factor": 4},
    "idefics3": {"vision_config": {"image_size": 512, "patch_size": 16}, "scale_factor": 4},
    "gemma3": {"vision_config": {"image_size": 896, "patch_size": 14}},
    "blip-2": {"image_token_index": 50265},
    "instructblip": {"image_token_index": 32000},
    "aya_vision": {
        "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_attention_heads": 16}
    },
    "wav2vec2": {"architectures": ["Wav2Vec2ForCTC"]},
    "wav2vec2-bert": {"architectures": ["Wav2Vec2BertForCTC"], "vocab_size": 32},
    "hubert": {"architectures": ["HubertForCTC"]},
    "data2vec-audio": {"architectures": ["Data2VecAudioForCTC"]},
    "layoutlmv3": {"architectures": ["LayoutLMv3ForTokenClassification"]},
    "audio-spectrogram-transformer": {"architectures": ["ASTForAudioClassification"]},
    "videomae": {"architectures": ["VideoMAEForVideoClassification"]},
    "timesformer": {"architectures": ["TimesformerForVideoClassification"]},
}
"""What default configurations need to build a model; None leaves the default."""
DIFFUSERS: dict[str, dict[str, Any]] = {
    "FluxTransformer2DModel": {"num_layers": 1, "num_single_layers": 1},
    "SD3Transformer2DModel": {"num_layers": 2},
    "PixArtTransformer2DModel": {"num_layers": 1, "caption_channels": 4096},
    "WanTransformer3DModel": {"num_layers": 1},
    "HunyuanVideoTransformer3DModel": {"num_layers": 1, "num_single_layers": 1},
    "LTXVideoTransformer3DModel": {"num_layers": 1},
    "QwenImageTransformer2DModel": {"num_layers": 1},
    "CogVideoXTransformer3DModel": {"num_layers": 1},
    "DiTTransformer2DModel": {"num_layers": 1},
    "SanaTransformer2DModel": {"num_layers": 1},
    "Lumina2Transformer2DModel": {"num_layers": 1},
    "AuraFlowTransformer2DModel": {"num_mmdit_layers": 1, "num_single_dit_layers": 1},
    "CogView4Transformer2DModel": {"num_layers": 1},
    "ChromaTransformer2DModel": {"num_layers": 1, "num_single_layers": 1},
    "Flux2Transformer2DModel": {"num_layers": 1, "num_single_layers": 1},
    "MochiTransformer3DModel": {"num_layers": 1},
    "AllegroTransformer3DModel": {"num_layers": 1},
    "LatteTransformer3DModel": {
        "num_layers": 1,
        "caption_channels": 4096,
        "sample_size": 64,
        "patch_size": 2,
        "in_channels": 4,
    },
    "UNet2DModel": {},
    "UNet2DConditionModel": {},
    "VQModel": {},
    "AutoencoderTiny": {},
    "AutoencoderKLFlux2": {},
    "AutoencoderKLMochi": {},
    "AutoencoderKL": {},
    "AutoencoderDC": {},
    "AutoencoderKLWan": {},
    "AutoencoderKLCogVideoX": {},
    "AutoencoderKLLTXVideo": {},
    "AutoencoderKLHunyuanVideo": {},
    "AutoencoderKLQwenImage": {},
}
TIMM = (
    "resnet18 resnext50_32x4d seresnet50 res2net50_26w_4s resnest50d wide_resnet50_2 densenet121 vgg16 inception_v3"
    " inception_v4 inception_resnet_v2 xception41 efficientnet_b0 efficientnetv2_s mobilenetv2_100 mobilenetv3_large_100"
    " mobilenetv4_conv_small mnasnet_100 ghostnet_100 regnety_008 rexnet_100 dla34 dpn68 darknet53 cspresnet50 hrnet_w18"
    " nasnetalarge pnasnet5large nfnet_f0 convnext_tiny convnextv2_tiny convmixer_768_32 vit_tiny_patch16_224"
    " deit_tiny_patch16_224 beit_base_patch16_224 eva02_tiny_patch14_224 swin_tiny_patch4_window7_224"
    " swinv2_tiny_window8_256 cait_xxs24_224 xcit_nano_12_p16_224 pvt_v2_b0 twins_svt_small coat_lite_tiny"
    " crossvit_tiny_240 levit_128 mixer_s32_224 gmlp_s16_224 resmlp_12_224 poolformer_s12 maxvit_tiny_rw_224 coatnet_0_rw_224"
    " focalnet_tiny_srf davit_tiny mvitv2_tiny edgenext_small efficientformer_l1 fastvit_t8 mobilevit_s volo_d1_224"
    " sequencer2d_s"
)


class _TooLong(BaseException):
    pass


def _alarm(*_: object) -> None:
    raise _TooLong


def configuration(kind: str) -> dict[str, Any]:
    """The default configuration of a model type of transformers, with two layers."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = CONFIG_MAPPING[kind]
    default = made()
    small = {name: 2 for name in DEPTHS if hasattr(default, name)} | CHANGED.get(kind, {})
    try:
        found = made(**{name: value for name, value in small.items() if value is not None})
    except Exception:  # some refuse to have two layers
        found = default
    return {**found.to_dict(), "model_type": kind}


def models(kind: str) -> Iterator[tuple[str, tuple[str, ...], dict[str, Any] | None, dict[str, Any]]]:
    """Name, modes, configuration and options of each model."""
    if kind == "timm":
        for name in TIMM.split():
            yield name, ("inference", "train"), None, {"model": f"timm:{name}", "batch": 2}
    elif kind == "diffusers":
        for name, values in DIFFUSERS.items():
            yield name, ("inference", "train"), {"_class_name": name, **values}, {"image": 32}
    else:
        modes, names = TRANSFORMERS[kind]
        for name in names.split():
            yield name, modes, configuration(name), {"batch": 2} if kind == "encoder" else {"context": 128}
            if kind == "images_and_text":
                modes_with_image = ("inference", "prefill", "train")
                yield f"{name} with an image", modes_with_image, configuration(name), {"context": 2048, "image": 448}


def outcome(config: dict[str, Any] | None, prefix: str, options: dict[str, Any]) -> str:
    """Empty if the model imports, else why it does not."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        if config is not None:
            Path(folder, "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
            options = {**options, "model": f"{prefix}:{folder}"}
        signal.alarm(LIMIT_S)
        try:
            load_programs(**options)
        except _TooLong:
            return f"more than {LIMIT_S} s"
        except PlacekitError as e:
            return e.message.replace(folder, "FOLDER").replace(Path(folder).name, "FOLDER")
        except Exception as e:
            return f"no error of placekit: {e!r}"
        finally:
            signal.alarm(0)
    return ""


def main() -> int:
    kinds = [*TRANSFORMERS, "diffusers", "timm"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", default=kinds)
    parser.add_argument("--only", nargs="+", default=())
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    signal.signal(signal.SIGALRM, _alarm)
    for needed, prefix in (("transformers", "hf"), ("diffusers", "diffusers"), ("timm", "timm")):
        library(needed, prefix)
    table = ["| library | mode | imported | of |", "|---|---|---|---|"]
    failed: list[str] = []
    for kind in given.libraries:
        counts: dict[str, list[int]] = {}
        for name, modes, config, options in models(kind):
            if given.only and name.split()[0] not in given.only:
                continue
            for mode in modes:
                start = time.perf_counter()
                prefix = kind if kind == "diffusers" else "hf"
                error = outcome(config, prefix, {**options, "mode": mode})
                print(f"{kind:16} {name:32} {mode:10} {time.perf_counter() - start:5.1f} s  {error}", flush=True)
                column = f"{mode}, with an image" if "image" in options and "context" in options else mode
                done, of = counts.setdefault(column, [0, 0])
                counts[column] = [done + (not error), of + 1]
                failed += [f"| {kind}: {name} | {mode} | {error.splitlines()[0][:240]} |"] if error else []
        table += [f"| {kind} | {mode} | {done} | {of} |" for mode, (done, of) in counts.items()]
    print("\n".join(["", *table]))
    if given.write:
        import diffusers
        import timm
        import transformers

        versions = ", ".join(f"{m.__name__} {m.__version__}" for m in (transformers, diffusers, timm))
        about = f"`python benchmarks/architectures.py --write`, {versions}."
        head = ["# Architectures that import", "", about, "", *table, ""]
        rest = ["Not imported:", "", "| model | mode | error |", "|---|---|---|", *failed, ""] if failed else []
        RESULTS.write_text("\n".join([*head, *rest]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
