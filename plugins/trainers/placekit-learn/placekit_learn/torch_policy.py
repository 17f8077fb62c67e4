"""Base class of policies whose parameters are a torch module: autograd provides the gradients that trainers need.

The interface takes and returns numpy arrays. Tensors are on the CPU, or on option `device` of a `TorchPolicy`.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor, nn

from placekit_core import LearnablePolicy, PlacekitError, Problem, RecomputesLogProb, Rollouts
from placekit_learn.torch_options import TorchOptions, TorchPolicyOptions

__all__ = ["Decisions", "TorchOptions", "TorchParameters", "TorchPolicy", "TorchPolicyOptions", "size_hint"]


@dataclass(frozen=True, eq=False)
class Decisions:
    """Probabilities, with autograd, of the decisions in b episodes of at most T decisions on D devices.

    Numbers after the end of an episode are not used, but must be finite in all but `log_p`.

    Attributes:
        log_prob: [b, T] natural logarithm of the probability of each decision.
        entropy: [b, T] entropy of the distribution that it was drawn from, nats.
        log_p: [b, T, D] logarithm of that whole distribution; -inf for devices that are not allowed.
        value: [b, T] expected return from each decision on, of policies that are `EstimatesReturns`.
    """

    log_prob: Tensor
    entropy: Tensor
    log_p: Tensor
    value: Tensor | None = None


def size_hint(option: str, trained: int, here: int) -> list[str]:
    """A hint if a network was trained with room for `trained` devices or groups, and is built here for `here`; else empty."""
    if trained < here:
        return [f"train it with policy.{option}={here}, or more"]
    return [f"give policy.{option}={trained}, as it was trained with"] if trained > here else []


class TorchParameters(LearnablePolicy):
    """A policy with the parameters of the torch module `module`. Subclasses implement `network` and compute gradients.

    Buffers of the module are not saved: they follow from the options and the problems.
    """

    options_class = TorchOptions
    module: nn.Module
    device_parameter: ClassVar[str] = ""
    """A parameter with one number per device of `max_devices`; empty if the network works for any number of devices."""

    @abstractmethod
    def network(self, problems: Sequence[Problem]) -> nn.Module:
        """The module, of the size that these problems need, initialized.

        torch's default generator is seeded while this runs.
        """

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        with self.fixed_threads(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(_seed(rng))  # torch.manual_seed would seed accelerators too
            self.module = self.network(problems)

    def apply(self, steps: Mapping[str, NDArray[Any]]) -> None:
        parameters = dict(self.module.named_parameters())
        # torch would split this addition among its threads; on busy cores, waiting for them takes longer than adding.
        with self.fixed_threads(), torch.no_grad():
            for name, step in steps.items():
                if name not in parameters:
                    raise PlacekitError(f"policy {self.name!r} has no parameter {name!r}", _listed(parameters))
                parameters[name].add_(_tensor(step, parameters[name]))

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {name: p.detach().cpu().numpy().copy() for name, p in self.module.named_parameters()}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        parameters = dict(self.module.named_parameters())
        wrong = [f"lack {name!r}" for name in parameters if name not in state]
        wrong += [f"have {name!r}, which the policy lacks" for name in state if name not in parameters]
        wrong += [
            f"have {name!r} of shape {list(np.shape(state[name]))}, not {list(p.shape)}"
            for name, p in parameters.items()
            if name in state and np.shape(state[name]) != tuple(p.shape)
        ]
        if wrong:
            hints = self.size_hints(state) if parameters.keys() <= state.keys() else []
            raise PlacekitError(
                f"these parameters do not fit policy {self.name!r} as it was built here: they " + "; ".join(wrong[:5]),
                "; ".join(hints) or "they belong to other options, or to problems of other sizes",
            )
        with torch.no_grad():
            for name, p in parameters.items():
                p.copy_(_tensor(state[name], p))

    def size_hints(self, state: Mapping[str, NDArray[Any]]) -> list[str]:
        """Hints: the options with which parameters of other sizes would fit."""
        name = self.device_parameter
        if name not in state:
            return []
        return size_hint("max_devices", np.size(state[name]), self.module.get_parameter(name).numel())

    def generator(self, rng: Generator) -> torch.Generator:
        """A new generator, seeded from `rng`."""
        return torch.Generator().manual_seed(_seed(rng))

    @contextmanager
    def fixed_threads(self) -> Iterator[None]:
        """Within the block, let torch use the number of threads in option `threads`."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.options.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class TorchPolicy(TorchParameters, RecomputesLogProb):
    """A policy in torch: autograd computes its gradients. Subclasses implement `network`, `rollout` and `evaluate_actions`.

    In `rollout`, work in `with self.computing(), torch.no_grad():`, draw from `self.generator(rng)`, and store the distributions
    drawn from as `extra["log_p"]`, float32 [b, T, D]. The policy can then also subclass `ReportsKL`, and if its decisions have a
    `value`, `EstimatesReturns`: this class implements their methods.
    """

    options_class: ClassVar[type[TorchOptions]] = TorchPolicyOptions
    free_options = (*TorchParameters.free_options, "device")

    def build(self, problems: Sequence[Problem], rng: Generator) -> None:
        device = self.options.device
        if device == "cuda" and not torch.cuda.is_available():
            raise PlacekitError(
                "policy.device=cuda: torch sees no CUDA device",
                "use policy.device=cpu, or a machine with an NVIDIA GPU and a build of torch for it",
            )
        super().build(problems, rng)  # on the CPU: equal seeds give equal first parameters on all devices
        self.module.to(device)

    def generator(self, rng: Generator) -> torch.Generator:
        return torch.Generator(self.options.device).manual_seed(_seed(rng))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within the block, let torch compute with the options `threads` and `device`.

        New tensors are created on that device, also by `torch.as_tensor` from numpy arrays.
        """
        with self.fixed_threads(), contextlib.ExitStack() as stack:
            if self.options.device != "cpu":  # on the CPU, it would only slow small operations down
                stack.enter_context(torch.device(self.options.device))
            yield

    @abstractmethod
    def evaluate_actions(self, problem: Problem, rollouts: Rollouts) -> Decisions:
        """The decisions of the rollouts under the current parameters, with autograd."""

    def gradients(
        self,
        problem: Problem,
        rollouts: Rollouts,
        weight: NDArray[np.float64],
        entropy_weight: float = 0.0,
        kl_weight: float = 0.0,
    ) -> dict[str, NDArray[Any]]:
        with self.computing():
            d, active = self.evaluate_actions(problem, rollouts), torch.as_tensor(rollouts.group >= 0)
            objective = (_tensor(weight, d.log_prob) * d.log_prob)[active].sum()
            if entropy_weight:
                objective = objective + entropy_weight * d.entropy[active].sum()
            if kl_weight:
                objective = objective - kl_weight * self._kl(d, rollouts)[active].sum()
            return self._gradients(objective)

    def log_prob(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        with self.computing(), torch.no_grad():
            return self.evaluate_actions(problem, rollouts).log_prob.double().cpu().numpy()

    def kl(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        with self.computing(), torch.no_grad():
            return self._kl(self.evaluate_actions(problem, rollouts), rollouts).double().cpu().numpy()

    def values(self, problem: Problem, rollouts: Rollouts) -> NDArray[np.float64]:
        with self.computing(), torch.no_grad():
            return self._value(problem, rollouts).double().cpu().numpy()

    def value_gradients(
        self, problem: Problem, rollouts: Rollouts, weight: NDArray[np.float64]
    ) -> dict[str, NDArray[Any]]:
        with self.computing():
            value, active = self._value(problem, rollouts), torch.as_tensor(rollouts.group >= 0)
            return self._gradients((_tensor(weight, value) * value)[active].sum())

    def _value(self, problem: Problem, rollouts: Rollouts) -> Tensor:
        value = self.evaluate_actions(problem, rollouts).value
        if value is None:
            raise PlacekitError(
                f"policy {self.name!r} subclasses EstimatesReturns, but its evaluate_actions returns no value",
                "return Decisions with `value` [b, T]",
            )
        return value

    def _gradients(self, objective: Tensor) -> dict[str, NDArray[Any]]:
        names, parameters = zip(*self.module.named_parameters(), strict=True)
        found = torch.autograd.grad(objective, parameters, allow_unused=True, materialize_grads=True)
        return {name: values.cpu().numpy() for name, values in zip(names, found, strict=True)}

    def _kl(self, decisions: Decisions, rollouts: Rollouts) -> Tensor:
        """[b, T] KL divergence of `decisions` from the distributions that were drawn from: sum of old log(old / new)."""
        if "log_p" not in rollouts.extra:
            raise PlacekitError(
                f"the rollouts of policy {self.name!r} hold no extra['log_p']: there is no KL divergence",
                "leave out trainer.kl_target, which penalizes the divergence",
            )
        new, old = decisions.log_p, _tensor(rollouts.extra["log_p"], decisions.log_p)
        impossible = torch.isneginf(new) | torch.isneginf(old)  # -inf - -inf is not a number
        return (old.exp() * (old.masked_fill(impossible, 0.0) - new.masked_fill(impossible, 0.0))).sum(dim=2)


def _tensor(values: NDArray[Any], like: Tensor) -> Tensor:
    """A copy of `values` in the precision of `like`, beside it: arrays may be read-only, or have strides that torch lacks."""
    return torch.from_numpy(np.array(values)).to(like)


def _seed(rng: Generator) -> int:
    return int(rng.integers(2**63 - 1))


def _listed(names: Mapping[str, Any]) -> str:
    return f"it has: {', '.join(names)}"
