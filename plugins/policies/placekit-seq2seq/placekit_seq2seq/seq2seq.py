"""The policy `seq2seq`: a device per group by an attentional recurrent network (Mirhoseini et al., ICML 2017)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_learn.torch_features import TypeEmbedding
from placekit_learn.torch_policy import Decisions, TorchOptions, TorchPolicy, size_hint
from torch import Tensor, nn

from placekit_core import PlacekitError, Placements, Problem, ReportsKL, Rollouts
from placekit_seq2seq import NetworkOptions, Seq2SeqOptions
from placekit_seq2seq.fast import FastPlacer
from placekit_seq2seq.features import Features, scaled
from placekit_seq2seq.network import Memory, Placer, chosen_log_prob, entropy


class RecurrentPolicy(TorchPolicy):
    """The part that both policies share: features of problems, each computed once, and the number of devices."""

    options: NetworkOptions
    module: Any
    device_parameter = "placer.output.bias"
    free_options = (*TorchPolicy.free_options, "engine")

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        self._features: WeakKeyDictionary[Problem, Features] = WeakKeyDictionary()
        super().build(problems, rng)

    def features(self, problem: Problem) -> Features:
        """The features of `problem`, computed once. Raises PlacekitError if it has more devices than there is room for."""
        room = self.module.placer.output.out_features
        if problem.cluster.size > room:
            raise PlacekitError(
                f"policy {self.name!r} was built for {room} devices, {problem.cluster.name!r} has {problem.cluster.size}",
                f"train it with policy.max_devices={problem.cluster.size}, or more",
            )
        if problem not in self._features:
            self._features[problem] = Features.of(problem, self.options.outputs, self.options.type_buckets)
        return self._features[problem]

    def devices(self, problems: Sequence[Problem]) -> int:
        """The number of devices to have room for."""
        return self.options.max_devices or max(p.cluster.size for p in problems)

    def placer(self, devices: int, features: int) -> Placer:
        """The sequence-to-sequence network over groups whose embeddings have length `features`."""
        o = self.options
        network = FastPlacer if o.engine == "fast" else Placer
        return network(features, devices, o.hidden, o.attention, o.aligned)


class Seq2Seq(RecurrentPolicy, ReportsKL):
    """Mirhoseini et al. 2017, section 3.2: encoder LSTM over the groups, attentional decoder LSTM over their devices.

    The groups are in topological order, or in a random order that all episodes of a rollout share. A group's
    embedding is the mean of its operations' type embeddings, the sizes of its largest outputs, and a one for each group
    that is a direct input or output. Any `explore` above 0 draws devices from the softmax; 0 takes the most likely ones.
    """

    name = "seq2seq"
    options_class: ClassVar[type[TorchOptions]] = Seq2SeqOptions
    options: Seq2SeqOptions
    free_options = (*RecurrentPolicy.free_options, "order", "orders", "order_seed")

    def network(self, problems: Sequence[Problem]) -> nn.Module:
        o = self.options
        self.room = o.max_groups or max(p.g for p in problems)
        self._check_room(max(problems, key=lambda p: p.g))
        return nn.ModuleDict(
            {
                "types": TypeEmbedding(o.type_buckets, o.type_size),
                "placer": self.placer(self.devices(problems), o.type_size + o.outputs + 2 * self.room),
            }
        )

    def features(self, problem: Problem) -> Features:
        """As in the base class; also raises PlacekitError if the problem has more groups than there is room for."""
        self._check_room(problem)
        return super().features(problem)

    def size_hints(self, state: Mapping[str, NDArray[Any]]) -> list[str]:
        """As in the base class, with a hint about option `max_groups` as well."""
        own = self.state_dict()["placer.encoder.weight_ih_l0"].shape[1] - 2 * self.room
        trained = (np.shape(state["placer.encoder.weight_ih_l0"])[-1] - own) // 2
        return super().size_hints(state) + size_hint("max_groups", trained, self.room)

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        features = self._ordered(problem, rng if explore > 0 else None)
        with self.computing(), torch.no_grad():
            generator = self.generator(rng) if explore > 0 else None
            device, log_p = self.module.placer.draw(self._memory(features), n, generator)
            log_prob, entropies = chosen_log_prob(log_p, device), entropy(log_p)
        placed = np.empty((n, problem.g), np.int16)
        device = device.cpu()
        placed[:, features.order] = device.numpy()
        return Rollouts(
            Placements(placed),
            np.tile(features.order.astype(np.int32), (n, 1)),
            device.numpy().astype(np.int16),
            log_prob.double().cpu().numpy(),
            entropies.double().cpu().numpy(),
            extra={"log_p": log_p.contiguous().cpu().numpy()},
        )

    def evaluate_actions(self, problem: Problem, rollouts: Rollouts) -> Decisions:
        device = torch.as_tensor(rollouts.device.astype(np.int64))
        features = self.features(problem)
        if (rollouts.group != rollouts.group[0]).any():
            raise ValueError("the rollouts of one call have one order: evaluate batches one by one")
        if not np.array_equal(rollouts.group[0], features.order):
            features = features.in_order(rollouts.group[0])
        log_p = self.module.placer.log_p(self._memory(features), device)
        return Decisions(chosen_log_prob(log_p, device), entropy(log_p), log_p)

    def _ordered(self, problem: Problem, rng: Generator | None) -> Features:
        """The features of `problem` in the order of the next rollout; without a generator it is always the same."""
        o, features = self.options, self.features(problem)
        if o.order == "topological":
            return features
        rng = rng or np.random.default_rng(o.order_seed)
        if o.orders:
            rng = np.random.default_rng([o.order_seed, int(rng.integers(o.orders))])
        return features.in_order(rng.permutation(problem.g).astype(np.int32))

    def _check_room(self, problem: Problem) -> None:
        if problem.g > self.room:
            raise PlacekitError(
                f"policy {self.name!r} has room for {self.room} groups, {problem.graph.name!r} has {problem.g}",
                f"train it with policy.max_groups={problem.g}, or more; or make fewer groups by another grouper",
            )

    def _memory(self, features: Features) -> Memory:
        memory: Memory = self.module.placer.encode(self._embedded(features)[None], features.allowed)
        return memory

    def _embedded(self, features: Features) -> Tensor:
        """[g, F] embeddings of the groups, section 3.2: type, output shape and adjacency, concatenated."""
        types = self.module.types(torch.as_tensor(features.type_bucket), torch.as_tensor(features.type_share))
        sizes, near = scaled(features.output_bytes), features.adjacency(self.room)
        return torch.cat([types, torch.as_tensor(sizes), torch.as_tensor(near)], dim=1)
