"""Forty architectures of five libraries, to import and to compare with what torch counts itself.

Each is built as its library builds it, without weights, imported for training or inference, and placed by critical paths on
eight H100 GPUs. Parameters must equal `sum(p.numel())`; FLOPs of products, convolutions and attention are compared with
`torch.utils.flop_counter.FlopCounterMode` around the eager step on fake tensors, where a mixture's experts are computed by
`batched_mm`, the form with one product per token and expert.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.flop_counter as counter
from placekit_torch import Step
from placekit_torch.capture import to_fake
from placekit_torch.constructing import converting, without_weights
from placekit_torch.factory import Made
from placekit_torch.importer import import_program
from placekit_torch.options import Kernels
from placekit_torch.tracing import fake_mode
from placekit_torch.trees import tensors_in
from placekit_torch.vision import declare_torchvision

from placekit_core import Graph, ImporterError, place

aten = torch.ops.aten
Factory = Callable[[], tuple[Any, Any]]


@dataclass(frozen=True)
class Architecture:
    """A model: its library, how it is imported, and a factory of module and inputs."""

    library: str
    mode: Any
    build: Factory
    tracer: Any = "joint"


@dataclass(frozen=True)
class Row:
    """What an import gave; `reason` of a failure."""

    name: str
    seconds: float = 0.0
    kernels: int = 0
    parameters: int = 0
    expected: int = 0
    flops: float = 0.0
    counted: float = 0.0
    makespan_s: float = 0.0
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Whether parameters are equal and FLOPs within 2%."""
        near = abs(self.flops - self.counted) <= 0.02 * self.counted
        return not self.reason and self.parameters == self.expected and near


def hf(kind: str, config: str, *, inputs: Callable[[Any], dict[str, Any]], **options: Any) -> Factory:
    """`AutoModelX.from_config` of a configuration of transformers."""

    def build() -> tuple[Any, Any]:
        import transformers

        chosen = transformers.CONFIG_MAPPING[config](**options)
        chosen._experts_implementation = EXPERTS
        return getattr(transformers, kind).from_config(chosen), inputs(chosen)

    return build


EXPERTS: str | None = None  # how transformers computes experts; its default if None


def tokens(config: Any, length: int = 128) -> dict[str, Any]:
    """Ids and, for training, labels."""
    ids = torch.randint(0, 1000, (1, length))
    return {"input_ids": ids, "labels": ids}


def ids(config: Any) -> dict[str, Any]:
    """Ids alone."""
    return {"input_ids": torch.randint(0, 1000, (1, 128))}


def translated(config: Any) -> dict[str, Any]:
    """Ids of an encoder and of a decoder."""
    return {"input_ids": torch.randint(0, 1000, (1, 128)), "labels": torch.randint(0, 1000, (1, 64))}


def image(config: Any) -> dict[str, Any]:
    """A picture of the configuration's size."""
    size = getattr(config, "image_size", None) or 224
    return {"pixel_values": torch.randn(1, 3, size, size)}


def speech(config: Any) -> dict[str, Any]:
    """30 seconds as Whisper takes them."""
    return {
        "input_features": torch.randn(1, config.num_mel_bins, 3000),
        "labels": torch.randint(0, 1000, (1, 32)),
    }


def pair(config: Any) -> dict[str, Any]:
    """A picture and a text, for CLIP."""
    return {"input_ids": torch.randint(0, 1000, (1, 77)), "pixel_values": torch.randn(1, 3, 224, 224)}


def timm(name: str, size: int = 224) -> Factory:
    """A network of timm."""

    def build() -> tuple[Any, Any]:
        import timm as library

        return library.create_model(name, pretrained=False), torch.randn(2, 3, size, size)

    return build


def vision(name: str, size: int = 224, **options: Any) -> Factory:
    """A network of torchvision."""

    def build() -> tuple[Any, Any]:
        from torchvision.models import get_model

        return get_model(name, weights=None, **options), torch.randn(2, 3, size, size)

    return build


def graph_network(kind: str) -> Factory:
    """A network of torch-geometric, on a random graph of 1,000 nodes and 5,000 edges."""

    def build() -> tuple[Any, Any]:
        from torch_geometric.nn import models

        edges = torch.randint(0, 1000, (2, 5000))
        return getattr(models, kind)(64, 128, 3, 10), (torch.randn(1000, 64), edges)

    return build


def diffusion(kind: str, inputs: Callable[[], Any], **options: Any) -> Factory:
    """A network of diffusers with its default configuration."""

    def build() -> tuple[Any, Any]:
        import diffusers

        return getattr(diffusers, kind)(**options), inputs()

    return build


def _llama(**sizes: Any) -> dict[str, Any]:
    return {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, **sizes}


_LM, _MASKED, _SEQ, _BASE = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModel"
ARCHITECTURES: dict[str, Architecture] = {
    "bert": Architecture("transformers", "train", hf(_MASKED, "bert", inputs=tokens)),
    "roberta": Architecture("transformers", "train", hf(_MASKED, "roberta", inputs=tokens)),
    "distilbert": Architecture("transformers", "train", hf(_MASKED, "distilbert", inputs=tokens)),
    "albert": Architecture("transformers", "inference", hf(_MASKED, "albert", inputs=ids)),
    "electra": Architecture("transformers", "inference", hf(_MASKED, "electra", inputs=ids)),
    "deberta-v2": Architecture(
        "transformers", "inference", hf(_MASKED, "deberta-v2", inputs=ids, num_hidden_layers=12)
    ),
    "gpt2": Architecture("transformers", "train", hf(_LM, "gpt2", inputs=tokens)),
    "gpt_neox": Architecture("transformers", "inference", hf(_LM, "gpt_neox", inputs=ids, num_hidden_layers=24)),
    "opt": Architecture("transformers", "train", hf(_LM, "opt", inputs=tokens)),
    "llama": Architecture("transformers", "train", hf(_LM, "llama", inputs=tokens, **_llama(num_key_value_heads=8))),
    "mistral": Architecture("transformers", "inference", hf(_LM, "mistral", inputs=ids)),
    "qwen2": Architecture("transformers", "inference", hf(_LM, "qwen2", inputs=ids)),
    "qwen3": Architecture("transformers", "inference", hf(_LM, "qwen3", inputs=ids)),
    "gemma2": Architecture("transformers", "inference", hf(_LM, "gemma2", inputs=ids)),
    "phi": Architecture("transformers", "inference", hf(_LM, "phi", inputs=ids)),
    "falcon": Architecture("transformers", "inference", hf(_LM, "falcon", inputs=ids)),
    "bloom": Architecture(
        "transformers", "inference", hf(_LM, "bloom", inputs=ids, hidden_size=1024, n_layer=24, n_head=16)
    ),
    "mixtral": Architecture("transformers", "inference", hf(_LM, "mixtral", inputs=ids)),
    "qwen3_moe": Architecture("transformers", "train", hf(_LM, "qwen3_moe", inputs=tokens, num_hidden_layers=8)),
    "mamba": Architecture("transformers", "inference", hf(_LM, "mamba", inputs=ids, num_hidden_layers=8)),
    "t5": Architecture("transformers", "train", hf(_SEQ, "t5", inputs=translated, decoder_start_token_id=0)),
    "bart": Architecture("transformers", "train", hf(_SEQ, "bart", inputs=translated)),
    "whisper": Architecture("transformers", "train", hf("AutoModelForSpeechSeq2Seq", "whisper", inputs=speech)),
    "wav2vec2": Architecture(
        "transformers", "inference", hf(_BASE, "wav2vec2", inputs=lambda c: {"input_values": torch.randn(1, 16000)})
    ),
    "clip": Architecture("transformers", "inference", hf(_BASE, "clip", inputs=pair)),
    "vit": Architecture("transformers", "inference", hf("AutoModelForImageClassification", "vit", inputs=image)),
    "segformer": Architecture(
        "transformers", "inference", hf("AutoModelForSemanticSegmentation", "segformer", inputs=image)
    ),
    "swin (transformers)": Architecture("transformers", "inference", hf(_BASE, "swin", inputs=image)),
    "convnext_tiny": Architecture("timm", "train", timm("convnext_tiny")),
    "efficientnet_b0": Architecture("timm", "train", timm("efficientnet_b0")),
    "deit_small": Architecture("timm", "inference", timm("deit_small_patch16_224")),
    "mixer_b16": Architecture("timm", "inference", timm("mixer_b16_224")),
    "maxvit_tiny": Architecture("timm", "inference", timm("maxvit_tiny_tf_224")),
    "resnet50": Architecture("torchvision", "train", vision("resnet50")),
    "densenet121": Architecture("torchvision", "inference", vision("densenet121")),
    "googlenet": Architecture("torchvision", "inference", vision("googlenet", init_weights=False)),
    "gcn": Architecture("torch-geometric", "train", graph_network("GCN"), "make_fx"),
    "gat": Architecture("torch-geometric", "train", graph_network("GAT"), "make_fx"),
    "unet2d_condition": Architecture(
        "diffusers",
        "inference",
        diffusion(
            "UNet2DConditionModel",
            lambda: (torch.randn(1, 4, 64, 64), torch.tensor([10]), torch.randn(1, 77, 1280)),
        ),
    ),
    "autoencoder_kl": Architecture(
        "diffusers",
        "inference",
        diffusion("AutoencoderKL", lambda: torch.randn(1, 3, 256, 256), block_out_channels=[64]),
    ),
}
SHORT = ["distilbert", "gcn", "googlenet"]
SLOW = ["gat", "gpt2", "llama", "qwen3_moe", "resnet50", "unet2d_condition"]
PACKAGES = {"torch-geometric": "torch_geometric"}


def loss(output: Any) -> Any:
    """The output's own loss, or the mean of its tensors."""
    own = getattr(output, "loss", None)
    found = [t for t in tensors_in(output) if t.requires_grad]
    return own if own is not None else torch.stack([t.float().mean() for t in found]).sum()


def counted(factory: Callable[[], Step], mode: str, fake: Any) -> tuple[float, int]:
    """FLOPs that torch counts around the eager step, on fake tensors unless `fake` is None; and the number of parameters."""
    if fake is None:
        step = factory()
    else:
        with converting():
            with without_weights(fake):
                made = factory()
            step = to_fake(made, fake, "the reference")
    step.module.train(mode == "train")
    arguments, keywords = step.arguments
    formulas = {  # of attention on CPUs, which torch has formulas for on GPUs only
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    }
    with fake or contextlib.nullcontext(), counter.FlopCounterMode(display=False, custom_mapping=formulas) as total:
        if mode == "inference":
            with torch.no_grad():
                step.module(*arguments, **keywords)
        else:
            loss(step.module(*arguments, **keywords)).backward()
    return float(total.get_total_flops()), sum(p.numel() for p in step.module.parameters())


def _attention(query: Any, key: Any, value: Any, *rest: Any, **keywords: Any) -> int:
    return counter.sdpa_flop_count(query, key, value)  # type: ignore[no-any-return, no-untyped-call]


def _attention_backward(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **keywords: Any) -> int:
    return counter.sdpa_backward_flop_count(gradient, query, key, value)  # type: ignore[no-any-return, no-untyped-call]


def products(graph: Graph) -> float:
    """FLOPs of matrix products, convolutions and attention, which are those that torch counts."""
    kinds = ("matmul", "unaligned_matmul", "convolution", "attention")
    return float(sum(graph.flops[v] for v in range(graph.n) if graph.op_class[v] in kinds))


def parameters(graph: Graph) -> int:
    """Number of parameters."""
    first = {int(op): t for t, op in reversed(list(enumerate(graph.tensor_producer)))}
    return sum(int(np.prod(graph.shape(first[v]))) for v in range(graph.n) if graph.op_type[v] == "parameter")


def imported(name: str) -> Row:
    """Import an architecture, place it, and count again with torch. A failure has its reason."""
    global EXPERTS
    declare_torchvision()
    architecture = ARCHITECTURES[name]

    def factory() -> Step:
        return Step(*architecture.build(), loss=loss)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        began = time.process_time()
        try:
            kernels = Kernels(tracer=architecture.tracer)  # type: ignore[call-arg]
            program = import_program(Made(factory, name), name=name, mode=architecture.mode, kernels=kernels)
        except ImporterError as e:
            return Row(name, reason=str(e).splitlines()[0])
        seconds = time.process_time() - began
        result = place(program, policy="critical_path", cluster="h100x8", progress=False)
        EXPERTS = "batched_mm"
        try:
            expected, numbers = counted(
                factory, architecture.mode, fake_mode() if architecture.tracer == "joint" else None
            )
        finally:
            EXPERTS = None
    graph = program.graph
    run = int(graph.kernel.sum())
    return Row(name, seconds, run, parameters(graph), numbers, products(graph), expected, float(result.value_s or 0.0))
