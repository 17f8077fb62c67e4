"""accelerate's device map: which module goes to which device, by the bytes of its tensors.

Follows huggingface/accelerate, src/accelerate/utils/modeling.py, `infer_auto_device_map` and `get_balanced_memory`, commit
00cfd46; the code is our own. Left out: `fallback_allocation`, which is off by default, and the buffers that accelerate keeps
on a GPU when it offloads their module.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

Ties = Sequence[frozenset[str]]
"""Sets of tensors that share their memory; all but one of each set have 0 bytes."""


class Modules:
    """The modules of a network as a tree, from the names of their tensors.

    Attributes:
        size: bytes of each module and tensor, by path; `` is the whole network.
        children: paths of the modules and tensors directly below a module, tensors first, in the order of the names.
        whole: modules that are not split.
    """

    def __init__(self, tensors: Mapping[str, int], whole: Collection[str] = ()) -> None:
        self.whole = frozenset(whole)
        self.size: defaultdict[str, int] = defaultdict(int)
        below: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for name, bytes_ in tensors.items():
            path = ""
            self.size[path] += bytes_
            for part in name.split("."):
                parent, path = path, f"{path}.{part}" if path else part
                below[parent][path] = None
                self.size[path] += bytes_
        self.children = {
            parent: sorted(paths, key=lambda p: p in below) for parent, paths in below.items()
        }  # sorting is stable

    def is_module(self, path: str) -> bool:
        """Whether it is a module, and not a tensor."""
        return path in self.children

    def splits(self, path: str) -> bool:
        """Whether the path is a module with modules in it that may be divided."""
        return path not in self.whole and any(map(self.is_module, self.children.get(path, ())))

    def largest(self, paths: Sequence[str]) -> tuple[int, list[str]]:
        """Bytes of the largest module below `paths` that is not split, and the modules of this size."""
        size, names, queue = 0, [], list(reversed(paths))
        while queue:
            path = queue.pop()
            if self.splits(path):
                queue += reversed([c for c in self.children[path] if self.is_module(c)])
            elif self.size[path] > size:
                size, names = self.size[path], [path]
            elif self.size[path] == size:
                names.append(path)
        return size, names

    def leaves(self) -> list[str]:
        """The modules that hold tensors and no modules."""
        return [path for path in self.children if path and not any(map(self.is_module, self.children[path]))]


def balanced_memory(
    modules: Modules, memory: Mapping[str, int], gpus: Sequence[str], limited: bool = True
) -> dict[str, int]:
    """The bytes for weights on each device that balance the GPUs: what `device_map="auto"` passes to `infer_device_map`.

    Each GPU but the last gets total / GPUs, plus 1.25 times the larger of a module that is not split and the mean leaf; and
    never more than `memory`. The last GPU keeps all of its memory. `limited`: the user gave `memory`; otherwise a GPU that is
    alone keeps a tenth free.
    """
    result = dict(memory)
    used = [g for g in gpus if memory.get(g, 0) > 0]
    if not used:
        return result
    if len(used) == 1 and not limited:
        result[used[0]] = int(0.9 * result[used[0]])
    total, leaves = modules.size[""], modules.leaves()
    mean = int(sum(modules.size[m] for m in leaves) / max(len(leaves), 1))
    largest = max((modules.size[m] for m in modules.whole), default=0)
    each = total // len(used) + int(1.25 * max(largest, mean))
    for g in used[:-1]:
        result[g] = min(each, result[g])
    return result


@dataclass
class _Filling:
    """The devices in order, and what is on the current one."""

    modules: Modules
    memory: Sequence[tuple[str, int]]
    reserving: Collection[str]
    ties: Ties
    queue: list[str]  # what is left to place, the next one last
    device: int = 0
    used: int = 0
    map: dict[str, str] = field(default_factory=dict)

    def tied(self, path: str) -> list[tuple[str, str]]:
        """Tensors outside of `path` that share memory with a tensor in it, each with the entry of the queue that holds it."""
        inside = path + "."
        found = []
        for group in self.ties:
            own = {t for t in group if (t + ".").startswith(inside)}
            if own and own != group:
                for tensor in sorted(group - own):
                    holder = next((q for q in reversed(self.queue) if tensor.startswith(q + ".")), None)
                    if holder is not None:
                        found.append((tensor, holder))
        return found

    def split(self, path: str) -> None:
        """Replace a module of the queue by its children."""
        at = self.queue.index(path)
        self.queue[at : at + 1] = reversed(self.modules.children[path])


def infer_device_map(
    modules: Modules, memory: Sequence[tuple[str, int]], reserving: Collection[str], ties: Ties = ()
) -> dict[str, str]:
    """The device of each module, by accelerate's rule: modules in order, each on the current device, or split, or on the next.

    `memory` has the bytes for weights of each device, GPUs first, then the CPU. The devices in `reserving` (the first GPU and
    the CPU, or the CPU alone) keep room for the largest module still to place, which accelerate would load there if it were
    offloaded. A module that shares a tensor with later ones takes these with it. Modules that no device holds are on `disk`.
    """
    f = _Filling(modules, memory, reserving, ties, list(reversed(modules.children.get("", ()))))
    size, names = modules.largest(f.queue[::-1])
    while f.queue:
        path = f.queue.pop()
        names = [n for n in names if n != path and not n.startswith(path + ".")]
        if not names:
            size, names = modules.largest([q for q in reversed(f.queue) if modules.is_module(q)])
        tied = f.tied(path)
        own, needed = modules.size[path], modules.size[path]
        needed += sum(modules.size[holder] - modules.size[tensor] for tensor, holder in tied)
        if f.device == len(memory):
            device, room = "disk", None
        else:
            device, room = memory[f.device][0], memory[f.device][1] - f.used
            room -= size if device in reserving else 0
        if room is None or needed <= room:
            f.used += needed
            for taken in dict.fromkeys([path, *(holder for _, holder in tied)]):
                f.map[taken] = device
                if taken in f.queue:
                    f.queue.remove(taken)
            continue
        f.queue.append(path)
        divisible = next((holder for _, holder in tied if modules.splits(holder)), None) if own <= room else None
        if divisible is None and own >= room and modules.splits(path):
            divisible = path
        if divisible is None:
            f.device, f.used = f.device + 1, 0
            continue
        f.split(divisible)
        size, names = modules.largest([q for q in reversed(f.queue) if modules.is_module(q)])
    return f.map
