"""The policy `hierarchical`: it groups operations, then places its groups (Mirhoseini et al., ICLR 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from placekit_learn.torch_features import TypeEmbedding, positional_encoding
from placekit_learn.torch_policy import Decisions, TorchOptions
from torch import Tensor, nn

from placekit_core import PlacekitError, Placements, Problem, Rollouts
from placekit_seq2seq import HierarchicalOptions
from placekit_seq2seq.features import Features, scaled
from placekit_seq2seq.network import Memory, chosen_log_prob, entropy
from placekit_seq2seq.seq2seq import RecurrentPolicy


class Hierarchical(RecurrentPolicy):
    """Mirhoseini et al. 2018: a feed-forward grouper, softmax over groups per operation, and the placer of `seq2seq`.

    One decision per operation, in topological order. An operation runs on its group's device or, if it may not run there, on
    the first device that may run it. The log-probability of a decision is that of the operation's group; at the first operation
    of a group, that of the group's device is added, so that the sum is the joint log-probability. Entropies are split in the
    same way. Any `explore` above 0 draws groups and devices; 0 takes the most likely ones.
    The policy reports no KL divergence, because a decision has no single distribution over devices.
    `extra` of its rollouts: `op_group` [b, T] and `group_device` [b, groups] as drawn.
    """

    name = "hierarchical"
    level = "operation"
    options_class: ClassVar[type[TorchOptions]] = HierarchicalOptions
    options: HierarchicalOptions

    def network(self, problems: Sequence[Problem]) -> nn.Module:
        return self._network(min(self.options.groups, max(p.g for p in problems)), self.devices(problems))

    def _network(self, groups: int, devices: int) -> nn.Module:
        o, self.groups = self.options, groups
        features = o.type_size + o.outputs
        return nn.ModuleDict(
            {
                "types": TypeEmbedding(o.type_buckets, o.type_size),
                "grouper": _grouper(o, 3 * features, groups),
                "placer": self.placer(devices, features + 1 + 2 * groups),
            }
        )

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """As in the base class, but with the number of groups of the training: a smaller graph leaves some of them empty."""
        groups, built = self.groups, self.module
        trained = int(np.size(state.get("grouper.2.bias", ())))
        if trained not in (0, groups):
            with torch.random.fork_rng(devices=[]):
                self.module = self._network(trained, built.placer.output.out_features).to(self.options.device)
        try:
            super().load_state_dict(state)
        except PlacekitError:
            self.groups, self.module = groups, built
            raise

    def size_hints(self, state: Mapping[str, NDArray[Any]]) -> list[str]:
        """As in the base class, with a hint about option `octaves` as well."""
        own, o = self.state_dict()["grouper.0.weight"], self.options
        trained = o.octaves + (np.shape(state["grouper.0.weight"])[-1] - own.shape[-1]) // 2
        other = [f"give policy.octaves={trained}, as it was trained with"] if trained != o.octaves else []
        return super().size_hints(state) + other

    def rollout(self, problem: Problem, n: int, rng: Generator, explore: float = 0.0) -> Rollouts:
        features = self.features(problem)
        with self.computing(), torch.no_grad():
            generator = self.generator(rng) if explore > 0 else None
            types = self._types(features)
            group_log_p = self._group_log_p(features, types)
            op_group = _draw(group_log_p, n, generator)
            memory = self._memory(features, types, op_group)
            group_device, log_p = self.module.placer.draw(memory, n, generator)
            log_prob, entropies = _joint_log_prob(group_log_p, log_p, op_group, group_device)
        rows = np.arange(n)[:, None]
        op_group, group_device = op_group.cpu(), group_device.cpu()
        device = _run_where_allowed(group_device.numpy()[rows, op_group.numpy()], features.allowed)
        placed = np.empty((n, problem.g), np.int16)
        placed[:, features.order] = device
        return Rollouts(
            Placements(placed),
            np.tile(features.order.astype(np.int32), (n, 1)),
            device,
            log_prob.double().cpu().numpy(),
            entropies.double().cpu().numpy(),
            extra={
                "op_group": op_group.numpy().astype(np.int32),
                "group_device": group_device.numpy().astype(np.int16),
            },
        )

    def evaluate_actions(self, problem: Problem, rollouts: Rollouts) -> Decisions:
        """As in the base class, but `log_p` [b, groups, D] is about the groups' devices."""
        features = self.features(problem)
        op_group, group_device = (
            torch.as_tensor(rollouts.extra[name].astype(np.int64)) for name in ("op_group", "group_device")
        )
        types = self._types(features)
        log_p = self.module.placer.log_p(self._memory(features, types, op_group), group_device)
        return Decisions(*_joint_log_prob(self._group_log_p(features, types), log_p, op_group, group_device), log_p)

    def _types(self, features: Features) -> Tensor:
        """[T, type_size] type embeddings of the operations, which grouper and placer share."""
        types: Tensor = self.module.types(torch.as_tensor(features.type_bucket), torch.as_tensor(features.type_share))
        return types

    def _group_log_p(self, features: Features, types: Tensor) -> Tensor:
        """[T, groups] log-probabilities of the groups of each operation, by the grouper.

        The grouper sees an operation's type and output sizes, the means of these over its inputs and over its outputs, and
        its place in the sequence.
        """
        own = torch.cat([types, torch.as_tensor(scaled(features.output_bytes))], dim=1)
        source, target = torch.as_tensor(features.source), torch.as_tensor(features.target)
        near = _mean(own, source, target), _mean(own, target, source)
        seen = torch.cat([own, *near, positional_encoding(features.g, self.options.octaves)], dim=1)
        log_p: Tensor = self.module.grouper(seen).log_softmax(dim=1)
        return log_p

    def _memory(self, features: Features, types: Tensor, op_group: Tensor) -> Memory:
        """Encode the groups drawn [b, T]: their mean types, sums of output sizes, shares of operations, adjacency."""
        (b, steps), g = op_group.shape, self.groups
        at = (op_group + g * torch.arange(b)[:, None]).flatten()
        count = torch.bincount(at, minlength=b * g).view(b, g, 1).float()
        sums = torch.zeros(b * g, types.shape[1]).index_add(0, at, types.repeat(b, 1)).view(b, g, -1)
        bytes_ = torch.as_tensor(features.output_bytes)
        sizes = torch.zeros(b * g, bytes_.shape[1], dtype=bytes_.dtype).index_add_(0, at, bytes_.repeat(b, 1))
        near = torch.zeros(b, g, g)
        near[
            torch.arange(b)[:, None],
            op_group[:, torch.as_tensor(features.target)],
            op_group[:, torch.as_tensor(features.source)],
        ] = 1.0
        near.diagonal(dim1=1, dim2=2).zero_()
        parts = [
            sums / count.clamp(min=1.0),
            torch.as_tensor(scaled(sizes.cpu().numpy())).view(b, g, -1),
            torch.log1p(count) / np.log1p(steps),
            near,
            near.mT,
        ]
        allowed = np.broadcast_to(features.allowed.any(axis=0), (g, features.allowed.shape[1]))
        memory: Memory = self.module.placer.encode(torch.cat(parts, dim=2), allowed, count[:, :, 0] == 0)
        return memory


def _grouper(o: HierarchicalOptions, features: int, groups: int) -> nn.Sequential:
    """The network for the logits of an operation's group, from its features and its row of `positional_encoding`.

    If logits differ by about sqrt(2 ln groups) between places, only a few groups are likely for an operation; `sharpness` is a
    multiple of that. With torch's smaller initial weights all groups are about equally likely for every operation. Then its
    device is in effect drawn for it alone, and training ends with one device for all.
    """
    inputs = features + 2 * o.octaves
    first, last = nn.Linear(inputs, o.grouper_hidden), nn.Linear(o.grouper_hidden, groups)
    if o.sharpness and o.octaves:
        with torch.no_grad():
            nn.init.normal_(first.weight[:, features:])
            hidden = first(torch.cat([torch.zeros(1024, features), positional_encoding(1024, o.octaves)], dim=1)).relu()
            mean = hidden.mean(dim=0)
            spread = float((hidden - mean).square().sum(dim=1).mean().sqrt())
            nn.init.normal_(last.weight, std=o.sharpness * (2 * np.log(groups)) ** 0.5 / spread)
            last.bias.copy_(-(last.weight @ mean))  # else all operations would favour the same groups
    return nn.Sequential(first, nn.ReLU(), last)


def _mean(own: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """[T, F] for each operation, the mean of `own` over the sources of its edges; 0 if it has none."""
    total = torch.zeros_like(own).index_add(0, target, own[source])
    return total / torch.bincount(target, minlength=len(own)).clamp(min=1)[:, None]


def _draw(log_p: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """[n, T] groups drawn from `log_p` [T, groups]; without a generator, the most likely ones."""
    if generator is None:
        return log_p.argmax(dim=1).expand(n, -1).contiguous()
    below = log_p.double().exp().cumsum(dim=1)
    drawn = torch.rand(len(log_p), n, generator=generator, dtype=torch.float64) * below[:, -1:]
    return torch.searchsorted(below, drawn, right=True).clamp(max=log_p.shape[1] - 1).T.contiguous()


def _joint_log_prob(
    group_log_p: Tensor, log_p: Tensor, op_group: Tensor, group_device: Tensor
) -> tuple[Tensor, Tensor]:
    """[b, T] log-probability and entropy of each operation's decision; a group's device counts at its first operation.

    Args:
        group_log_p: [T, groups] log-probabilities of the grouper.
        log_p: [b, groups, D] log-probabilities of the placer.
        op_group, group_device: [b, T] and [b, groups], as drawn.
    """
    (b, steps), groups = op_group.shape, log_p.shape[1]
    none = torch.full((b, groups), steps)
    first = none.scatter_reduce(1, op_group, torch.arange(steps).expand(b, -1), "amin")

    def at_first(values: Tensor) -> Tensor:
        """[b, T] values [b, groups] at the first operation of each group; those of empty groups are dropped."""
        return torch.zeros(b, steps + 1, dtype=values.dtype).scatter_add(1, first, values)[:, :steps]

    chosen = group_log_p.expand(b, -1, -1).gather(2, op_group[:, :, None])[:, :, 0]
    log_prob = chosen + at_first(chosen_log_prob(log_p, group_device))
    return log_prob, entropy(group_log_p) + at_first(entropy(log_p))


def _run_where_allowed(device: NDArray[np.int64], allowed: NDArray[np.bool_]) -> NDArray[np.int16]:
    """[b, T] devices; the first allowed one for an operation that may not run on its own (TensorFlow's soft placement)."""
    may = allowed[np.arange(len(allowed)), device]
    return np.where(may, device, allowed.argmax(axis=1)).astype(np.int16)
