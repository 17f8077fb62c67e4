"""vLLM: pipeline stages of whole layers, the same number on each GPU.

Follows vllm-project/vllm, vllm/distributed/utils.py, `get_pp_indices`, commit 5a6541d, and
vllm/model_executor/models/llama.py, commit e06c9ba; the code is our own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from placekit_core import ConfigError, Placement, Problem
from placekit_runtimes.interface import Rule, Runtime, RuntimeMap
from placekit_runtimes.layers import Network, Stages, latent_notes
from placekit_runtimes.options import RuleOptions, VllmOptions


class VllmEven(Rule):
    """The same number of layers on every GPU, the remainder on GPUs in the middle; vLLM does not look at memory."""

    name = "vllm_even"
    options_class: ClassVar[type[RuleOptions]] = VllmOptions

    def rule(self, problem: Problem, note: Callable[[str], None]) -> Placement:
        """The placement. Raises NotApplicable without layers."""
        network, devices = Network.of(problem), self.ranks(problem)
        layers = network.count(self.name)
        for text in latent_notes(problem, "vLLM"):
            note(text)
        return network.stages(stage_layers(layers, len(devices), self.options.layer_partition), devices)


def stage_layers(layers: int, stages: int, partition: Sequence[int] | None = None) -> list[int]:
    """Layers of each stage: the same number for all; the remainder goes, one each, to the last stage but one and those before it.

    So the last stage, which holds the output, gets no extra layer, and the first, which holds the embedding, is the last to
    get one. `partition` (VLLM_PP_LAYER_PARTITION) is used as it is; raises ConfigError if it has other sums or stages.
    """
    if partition is not None:
        if len(partition) != stages:
            raise ConfigError(
                f"layer_partition has {len(partition)} stages, but there are {stages} devices",
                "give one number for each device: policy.devices names them",
            )
        if sum(partition) != layers:
            raise ConfigError(
                f"layer_partition places {sum(partition)} layers, but the network has {layers}",
                "make the numbers add up to the layers of the network",
            )
        return list(partition)
    each, rest = divmod(layers, stages)
    return [each + (stages - 1 - rest <= s < stages - 1) for s in range(stages)]


class Vllm(Runtime):
    """vLLM with `--pipeline-parallel-size`."""

    name = "vllm"
    title = "vLLM"
    versions = ("vllm-project/vllm at 5a6541d (get_pp_indices) and e06c9ba (models)",)
    default_rule = VllmEven
    runs = ("generation",)

    def write(self, problem: Problem, placement: Placement) -> RuntimeMap:
        """Environment variables: `VLLM_PP_LAYER_PARTITION=10,14`, the layers of each stage, for `--pipeline-parallel-size 2`.

        The embedding is on the first rank, norm and head on the last. Where the ranks are not the machine's first GPUs in
        order, a line before it sets `CUDA_VISIBLE_DEVICES`.
        """
        stages = Stages.of(problem, placement, self.title)
        order = [] if stages.visible is None else [f"CUDA_VISIBLE_DEVICES={stages.visible}"]
        text = "\n".join([*order, f"VLLM_PP_LAYER_PARTITION={','.join(map(str, stages.counts))}"])
        return stages.map(text, latent_notes(problem, self.title))


RUNTIME = Vllm()
