"""Strategies in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from placekit_core import Cluster
from placekit_training.strategy import Replica, Strategy


def compressed(words: Sequence[str], between: str) -> str:
    """The words, with a number before words that follow each other: `8x17.4`; of `v100:0` to `v100:7`, the first and last."""
    found = []
    for _, own in groupby(enumerate(words), key=_run):
        run = [word for _, word in own]
        if len(run) < 3:
            found += run
        else:
            found.append(f"{len(run)}x{run[0]}" if run[0] == run[1] else f"{run[0]} to {run[-1].rpartition(':')[2]}")
    return between.join(found)


def _run(place: tuple[int, str]) -> tuple[str, int]:
    """A key that is equal for equal words, and for devices with consecutive numbers."""
    i, word = place
    name, _, number = word.rpartition(":")
    return (name, int(number) - i) if name and number.isdigit() else (word, 0)


def described(strategy: Strategy, cluster: Cluster) -> str:
    """The work of each device, such as `20 rows on rtx4090:0, 2 micro-batches of 6 rows on rtx3090:0`."""
    names = cluster.device_names
    parts = list(_copies(strategy.replicas, names))
    if strategy.pipelined:
        parts.append(f"schedule {strategy.schedule}")
    if strategy.recompute:
        parts.append("layers repeat their forward pass (recomputation)")
    if strategy.shard_optimizer:
        parts.append("each device updates its share of the parameters (ZeRO-1)")
    return "; ".join(parts)


def _copies(replicas: Sequence[Replica], names: Sequence[str]) -> Iterator[str]:
    """Each copy; copies with the same rows and stages together."""
    alike: dict[tuple[int, int, tuple[str, ...]], list[Replica]] = {}
    for replica in replicas:
        alike.setdefault((replica.rows, replica.microbatches, replica.begins), []).append(replica)
    for (rows, microbatches, begins), own in alike.items():
        text = f"{rows} row{'s' if rows > 1 else ''}"
        if microbatches > 1 or begins:
            text = f"{microbatches} micro-batch{'es' if microbatches > 1 else ''} of {text}"
        starts = ["the first operations", *begins]
        stages = [
            f"{start} on {compressed([names[r.devices[s]] for r in own], ', ')}" for s, start in enumerate(starts)
        ]
        if not begins:
            each = "each of " if len(own) > 1 else ""
            yield f"{text} on {each}{compressed([names[r.devices[0]] for r in own], ', ')}"
        else:
            yield f"{text}{' each' if len(own) > 1 else ''}, with stages that begin with {', '.join(stages)}"
