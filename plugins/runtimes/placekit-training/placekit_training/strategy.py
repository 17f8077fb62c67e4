"""A way to run a training step on several devices: copies of the model, and stages within each copy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Replica:
    """One copy of the model, divided into consecutive stages.

    Attributes:
        devices: [p] the device of each stage, in the order of the forward pass; the same device again for a chunk of an
            interleaved schedule.
        begins: [p - 1] the module whose first call begins each stage but the first, such as `h.6`.
        rows: rows of the batch in one micro-batch.
        microbatches: micro-batches of this copy in a step.
    """

    devices: tuple[int, ...]
    begins: tuple[str, ...]
    rows: int
    microbatches: int

    @property
    def batch(self) -> int:
        """Rows of the global batch that this copy processes in a step."""
        return self.rows * self.microbatches


@dataclass(frozen=True)
class Strategy:
    """How a step is run. Gradients are averaged over the copies, weighted by their rows.

    Attributes:
        replicas: the copies of the model; no device is in two of them.
        schedule: order of a stage's tasks, one of `placekit_pipeline.pipeline.SCHEDULES`.
        recompute: whether layers keep only their inputs and repeat their forward pass before the backward pass.
        shard_optimizer: whether each copy keeps and updates only its share of the optimiser's state (ZeRO-1).
    """

    replicas: tuple[Replica, ...]
    schedule: str = "1f1b"
    recompute: bool = False
    shard_optimizer: bool = False

    @property
    def batch(self) -> int:
        """Rows of the global batch."""
        return sum(replica.batch for replica in self.replicas)

    @property
    def pipelined(self) -> bool:
        """Whether a copy has several stages."""
        return any(len(replica.devices) > 1 for replica in self.replicas)

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that are used, each once."""
        return tuple(dict.fromkeys(d for replica in self.replicas for d in replica.devices))
