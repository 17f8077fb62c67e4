"""Architectures of five libraries: parameters and FLOPs of the import are those that torch counts itself.

Each is built as its library builds it, without weights, and imported for training or inference. Parameters must equal
`sum(p.numel())`; FLOPs of products, convolutions and attention are compared with `torch.utils.flop_counter` around the eager
step on fake tensors, where a mixture's experts are computed by `batched_mm`, with one product per token and expert.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.utils.flop_counter as counter
from placekit_testing.speed import mostly_slow
from placekit_torch import Step
from placekit_torch.capture import to_fake
from placekit_torch.factory import Made
from placekit_torch.fake_parameters import converting, without_weights
from placekit_torch.importer import import_program
from placekit_torch.nested_tensors import tensors_in
from placekit_torch.options import Kernels
from placekit_torch.tracing import fake_mode
from placekit_torch.vision import declare_torchvision

from placekit_core import Graph

aten = torch.ops.aten
Factory = Callable[[], tuple[Any, Any]]
EXPERTS: str | None = None  # how transformers computes experts; None: its default


class Architecture(NamedTuple):
    library: str
    mode: Any
    build: Factory
    tracer: Any = "joint"


def hf(kind: str, config: str, inputs: Callable[[Any], dict[str, Any]], **options: Any) -> Factory:
    """`AutoModelX.from_config` of a configuration of transformers."""

    def build() -> tuple[Any, Any]:
        import transformers

        chosen = transformers.CONFIG_MAPPING[config](**options)
        chosen._experts_implementation = EXPERTS
        return getattr(transformers, kind).from_config(chosen), inputs(chosen)

    return build


def ids(config: Any) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, 1000, (1, 128))}


def labelled(config: Any) -> dict[str, Any]:
    tokens = torch.randint(0, 1000, (1, 128))
    return {"input_ids": tokens, "labels": tokens}


def image(config: Any) -> dict[str, Any]:
    size = config.image_size
    return {"pixel_values": torch.randn(1, 3, size, size)}


def speech(config: Any) -> dict[str, Any]:
    return {"input_features": torch.randn(1, config.num_mel_bins, 3000), "labels": torch.randint(0, 1000, (1, 32))}


def pair(config: Any) -> dict[str, Any]:
    return {"input_ids": torch.randint(0, 1000, (1, 77)), "pixel_values": torch.randn(1, 3, 224, 224)}


def timm(name: str) -> Factory:
    def build() -> tuple[Any, Any]:
        import timm as library

        return library.create_model(name, pretrained=False), torch.randn(2, 3, 224, 224)

    return build


def vision(name: str, **options: Any) -> Factory:
    def build() -> tuple[Any, Any]:
        from torchvision.models import get_model

        return get_model(name, weights=None, **options), torch.randn(2, 3, 224, 224)

    return build


def graph_network() -> tuple[Any, Any]:
    """A network of torch-geometric, on a random graph of 1,000 nodes and 5,000 edges."""
    from torch_geometric.nn import models

    return models.GCN(64, 128, 3, 10), (torch.randn(1000, 64), torch.randint(0, 1000, (2, 5000)))


def diffusion() -> tuple[Any, Any]:
    import diffusers

    inputs = (torch.randn(1, 4, 64, 64), torch.tensor([10]), torch.randn(1, 77, 1280))
    return diffusers.UNet2DConditionModel(), inputs


_LM, _BASE = "AutoModelForCausalLM", "AutoModel"
ARCHITECTURES = {
    "distilbert": Architecture("transformers", "train", hf("AutoModelForMaskedLM", "distilbert", labelled)),
    "gpt2": Architecture("transformers", "train", hf(_LM, "gpt2", labelled)),
    "qwen3_moe": Architecture("transformers", "train", hf(_LM, "qwen3_moe", labelled, num_hidden_layers=8)),
    "gemma2": Architecture("transformers", "inference", hf(_LM, "gemma2", ids)),
    "mamba": Architecture("transformers", "inference", hf(_LM, "mamba", ids, num_hidden_layers=8)),
    "t5": Architecture("transformers", "train", hf("AutoModelForSeq2SeqLM", "t5", labelled, decoder_start_token_id=0)),
    "whisper": Architecture("transformers", "train", hf("AutoModelForSpeechSeq2Seq", "whisper", speech)),
    "clip": Architecture("transformers", "inference", hf(_BASE, "clip", pair)),
    "swin": Architecture("transformers", "inference", hf(_BASE, "swin", image)),
    "efficientnet_b0": Architecture("timm", "train", timm("efficientnet_b0")),
    "maxvit_tiny": Architecture("timm", "inference", timm("maxvit_tiny_tf_224")),
    "resnet50": Architecture("torchvision", "train", vision("resnet50")),
    "googlenet": Architecture("torchvision", "inference", vision("googlenet", init_weights=False)),
    "gcn": Architecture("torch_geometric", "train", graph_network, "make_fx"),
    "unet2d_condition": Architecture("diffusers", "inference", diffusion),
}
FAST, SLOW = ["gcn"], ["distilbert", "googlenet", "qwen3_moe"]
LONG = [n for n in ARCHITECTURES if n not in [*FAST, *SLOW]]


def loss(output: Any) -> Any:
    """The output's own loss, or the mean of its tensors."""
    own = getattr(output, "loss", None)
    found = [t for t in tensors_in(output) if t.requires_grad]
    return own if own is not None else torch.stack([t.float().mean() for t in found]).sum()


def counted(factory: Callable[[], Step], mode: str, fake: Any) -> tuple[float, int]:
    """FLOPs that torch counts around the eager step, on fake tensors unless `fake` is None, and the number of parameters."""
    if fake is None:
        step = factory()
    else:
        with converting():
            with without_weights(fake):
                made = factory()
            step = to_fake(made, fake, "the reference")
    step.module.train(mode == "train")
    arguments, keywords = step.arguments
    formulas = {  # of attention on CPUs; torch has formulas for GPUs only
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: counter.sdpa_flop_count(q, k, v),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda g, q, k, v, *_, **__: counter.sdpa_backward_flop_count(g, q, k, v)
        ),
    }
    with fake or contextlib.nullcontext(), counter.FlopCounterMode(display=False, custom_mapping=formulas) as total:
        if mode == "inference":
            with torch.no_grad():
                step.module(*arguments, **keywords)
        else:
            loss(step.module(*arguments, **keywords)).backward()
    return float(total.get_total_flops()), sum(p.numel() for p in step.module.parameters())


def products(graph: Graph) -> float:
    """FLOPs of matrix products, convolutions and attention: the operations that torch counts."""
    kinds = ("matmul", "unaligned_matmul", "convolution", "attention")
    return float(sum(graph.flops[v] for v in range(graph.n) if graph.op_class[v] in kinds))


def parameters(graph: Graph) -> int:
    first = {int(op): t for t, op in reversed(list(enumerate(graph.tensor_producer)))}
    return sum(int(np.prod(graph.shape(first[v]))) for v in range(graph.n) if graph.op_type[v] == "parameter")


@pytest.mark.parametrize("name", mostly_slow(ARCHITECTURES, FAST, LONG))
def test_architecture(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = ARCHITECTURES[name]
    declare_torchvision()
    pytest.importorskip(architecture.library)

    def factory() -> Step:
        return Step(*architecture.build(), loss=loss)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernels = Kernels(tracer=architecture.tracer)  # type: ignore[call-arg]
        graph = import_program(Made(factory, name), name=name, mode=architecture.mode, kernels=kernels).graph
        monkeypatch.setitem(globals(), "EXPERTS", "batched_mm")
        fake = fake_mode() if architecture.tracer == "joint" else None
        flops, numbers = counted(factory, architecture.mode, fake)
    assert parameters(graph) == numbers
    assert products(graph) == pytest.approx(flops, rel=0.02)
    assert graph.kernel.sum() > 20
