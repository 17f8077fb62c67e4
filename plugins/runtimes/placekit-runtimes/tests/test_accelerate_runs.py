"""Device maps really dispatched by accelerate: on tensors of virtual GPUs with true values, and from the CPU and the disk."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils._pytree as pytree
from placekit_layers import sequence
from placekit_runtimes import device_map
from placekit_runtimes.accelerate.hooks import covering, locate
from placekit_runtimes.interface import DeviceName
from placekit_torch.vision import declare_torchvision

from placekit_core import Cluster, Placement, Problem, load_programs

accelerate = pytest.importorskip("accelerate")

MACHINE = Cluster.parse(
    {
        "name": "machine",
        "kinds": {
            "gpu": {"flops_per_s": {"float32": 1e13}, "memory_bytes": 10**12, "memory_bytes_per_s": 1e12},
            "cpu": {
                "type": "cpu",
                "flops_per_s": {"float32": 1e12},
                "memory_bytes": 10**12,
                "memory_bytes_per_s": 1e11,
            },
        },
        "devices": [{"kind": "gpu", "count": 3}, {"kind": "cpu"}],
        "links": [{"mesh": "*", "bytes_per_s": 1e10}],
    }
)
GPUS, CPU = (0, 1, 2), 3
HOST = torch.device("cpu")


class OnGpu(torch.Tensor):
    """A tensor on a GPU that does not exist, named `cpu:1`; the values are on `cpu`. Operations check devices as real ones do."""

    value: torch.Tensor

    @staticmethod
    def __new__(cls, value: torch.Tensor, requires_grad: bool = False, device: Any = None) -> Any:
        own = value.value if isinstance(value, OnGpu) else value
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            own.shape,
            strides=own.stride(),
            dtype=own.dtype,
            device=device or value.device,
            requires_grad=requires_grad,
        )
        made.value = own
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnGpu({tuple(self.shape)}, {self.device})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten._to_copy.default:
            target = torch.device(kwargs.pop("device", None) or args[0].device)
            own = args[0].value if isinstance(args[0], OnGpu) else args[0]
            made = func(own, **kwargs)
            return made if target == HOST else OnGpu(made, device=target)
        leaves = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        devices = {t.device for t in leaves if t.dim() > 0 or t.device != HOST}
        if len(devices) > 1:
            raise RuntimeError(f"{func} on {sorted(map(str, devices))}")
        [device] = devices or [torch.device(kwargs.get("device") or "cpu")]
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        args, kwargs = pytree.tree_map_only(OnGpu, lambda t: t.value, (args, kwargs))
        return pytree.tree_map_only(torch.Tensor, lambda t: OnGpu(t, device=device), func(*args, **kwargs))


class VirtualGpus(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes tensors for virtual GPUs: where an operation creates or moves one there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device")
        if device is not None and torch.device(device) != HOST:
            leaves = [t for t in pytree.tree_leaves(args) if isinstance(t, torch.Tensor)]
            if func is torch.ops.aten._to_copy.default:
                return OnGpu.__torch_dispatch__(func, types, args, kwargs)
            made = func(*args, **{**(kwargs or {}), "device": "cpu"}) if not leaves else None
            return OnGpu.__torch_dispatch__(func, types, args, kwargs) if made is None else OnGpu(made, device=device)
        return func(*args, **(kwargs or {}))


Made = tuple[torch.nn.Module, Any]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x)).relu() * self.scale  # type: ignore[no-any-return]


class Own(torch.nn.Module):
    """A tensor of the root, a sum of branches in the root, weights that are shared, and a concatenation from far away."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = torch.nn.Embedding(11, 8), torch.nn.Embedding(6, 8)
        self.first = torch.nn.Parameter(torch.randn(1, 1, 8))
        self.layers = torch.nn.ModuleList([Block() for _ in range(6)])
        self.join = torch.nn.Linear(16, 8)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions(torch.arange(6, device=tokens.device))
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1)
        for layer in self.layers[:2]:
            x = layer(x)
        kept = x
        for layer in self.layers[2:]:
            x = layer(x)
        return self.head(self.join(torch.cat([x, kept], dim=-1)))  # type: ignore[no-any-return]


def own() -> Made:
    return Own(), torch.randint(0, 11, (2, 6))


def transformers() -> Any:
    declare_torchvision()
    return pytest.importorskip("transformers")


def tokens() -> torch.Tensor:
    return torch.randint(1, 50, (2, 6))


def llama() -> Made:
    t = transformers()
    config = t.LlamaConfig(
        num_hidden_layers=4, hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, vocab_size=50,
        use_cache=False,
    )  # fmt: skip
    return t.LlamaForCausalLM(config), {"input_ids": tokens()}


MODELS = [own, *(pytest.param(f, marks=pytest.mark.slow, id=f.__name__) for f in (llama,))]


class Case:
    """A model, its inputs and output, and its problem on the machine."""

    def __init__(self, make: Callable[[], Made]) -> None:
        torch.manual_seed(0)
        self.model, self.inputs = make()
        self.model.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            [program] = load_programs(self.model, inputs=self.inputs)
        self.problem = Problem.of(program.graph, MACHINE)
        self.expected = self.run(self.model)

    def run(self, model: torch.nn.Module) -> torch.Tensor:
        arguments = self.inputs if isinstance(self.inputs, dict) else None
        with torch.no_grad():
            made = model(**arguments) if arguments else model(self.inputs)
        return made if isinstance(made, torch.Tensor) else made.logits

    def placements(self, devices: tuple[int, ...]) -> Iterator[Placement]:
        """Every group anywhere, and the first blocks on one device, the others on the next."""
        for seed in range(2):
            yield self.problem.placement(np.random.default_rng(seed).choice(devices, self.problem.g))
        blocks = sequence(self.problem)
        for cut in (len(blocks) // 3, len(blocks) // 2):
            yield blocks.placement([devices[int(b >= cut)] for b in range(len(blocks))])

    def leaves(self) -> list[str]:
        """The modules that have tensors of their own, without those below another one of them."""
        own = [n for n, m in self.model.named_modules() if n and any(m.state_dict(prefix="").keys() - inner(m))]
        return [n for n in own if not any(n.startswith(f"{other}.") for other in own)]

    def map(self, placement: Placement) -> dict[str, DeviceName]:
        return device_map(self.problem, placement, self.blocks).devices

    @property
    def blocks(self) -> list[str]:
        """The modules of the classes that the model's authors name for accelerate."""
        whole = {Block.__name__, *(getattr(self.model, "_no_split_modules", None) or ())}
        return [name for name, m in self.model.named_modules() if type(m).__name__ in whole]


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def inner(module: torch.nn.Module) -> set[str]:
    """The tensors of the modules in a module."""
    return {f"{name}.{key}" for name, m in module.named_children() for key in m.state_dict()}


def dispatched(model: torch.nn.Module, devices: Mapping[str, Any], **more: Any) -> torch.nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: torch.nn.Module = accelerate.dispatch_model(copy.deepcopy(model), devices, **more)
    return made


def on_gpus(case: Case, devices: Mapping[str, DeviceName]) -> torch.Tensor:
    """The output of the model that accelerate has dispatched over virtual GPUs, moved to the CPU."""
    named = {k: f"cpu:{int(d) + 1}" for k, d in devices.items()}
    with VirtualGpus():  # type: ignore[no-untyped-call]
        # accelerate takes the first of a set: of numbers the smallest
        model = dispatched(case.model, named, main_device=torch.device(min(named.values())), force_hooks=True)
        return case.run(model).to("cpu")


def test_maps_run_on_several_gpus_and_give_the_same_output(case: Case) -> None:
    several = 0
    for placement in case.placements(GPUS):
        devices = case.map(placement)
        several += len(set(devices.values())) > 1
        assert torch.equal(on_gpus(case, devices), case.expected)
    assert several >= 3


def test_maps_of_leaves_fail_where_it_is_predicted(case: Case) -> None:
    embeddings = [n for n, _ in case.model.named_modules() if n.endswith(("embed_tokens", "wte", "shared", "lm_head"))]
    failed = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        devices: dict[str, DeviceName] = {leaf: int(rng.random() < 0.04) for leaf in case.leaves()}
        if seed % 2:
            devices |= dict.fromkeys(embeddings, 0)  # most have shared weights
        devices |= {n: 0 for n, _ in case.model.named_parameters() if covering(n, devices) is None}
        predicted = locate(case.problem.graph, devices).breaks
        failed += bool(predicted)
        with pytest.raises(RuntimeError, match="cpu") if predicted else contextlib.nullcontext():
            assert torch.equal(on_gpus(case, devices), case.expected)
    assert failed > 0


def test_weights_are_streamed_from_the_cpu_and_the_disk(case: Case, tmp_path: Path) -> None:
    for i, placement in enumerate(list(case.placements((0, CPU)))[2:]):
        devices = case.map(placement)
        named = {k: "cpu" if d == 0 else "disk" for k, d in devices.items()}
        model = dispatched(case.model, named, offload_dir=tmp_path / str(i))
        assert torch.equal(case.run(model), case.expected)
        streamed = {n for n, p in model.named_parameters(remove_duplicate=False) if p.device.type == "meta"}
        found = locate(case.problem.graph, devices)
        graph = case.problem.graph
        assert {
            graph.op_name[v] for v in range(graph.n) if graph.op_type[v] == "parameter" and found.home[v] == "cpu"
        } == {n for n, _ in case.model.named_parameters() if n in streamed}
