"""Turns machines as people describe them, `a 4090 and 64 GB RAM`, into the words that `machine_words.py` reads."""

from __future__ import annotations

import re

from placekit_core import ClusterError
from placekit_inspect.data_sheets import Part, Parts
from placekit_inspect.machine_words import known_name, plain_name
from placekit_inspect.own_kinds import EXAMPLE

# Words without a meaning of their own: makers and lines of products; and what stands beside a size of memory.
_MAKERS = re.compile(
    r"\b(?:nvidia|geforce|tesla|quadro|amd|radeon|instinct|intel|arc|apple|macbook(?: pro| air)?|mac(?: mini| studio| pro)?|imac"
    r"|gpus?|cards?)\b"
)
_BESIDE_MEMORY = re.compile(r"\b(?:an?|of|the|system|host|main|cpu|ram|memory)\b|(?<=\d) ?(?:mhz|mt/s)\b")
_NOTHING = ("no gpu", "cpu only")
_NAMES = {"dgxspark": "gb10", "ryzenaimax395": "strix_halo"}
_PREFIXES = ("rtx", "gtx", "rx")
_TRANSFERS = {"4": 3200, "5": 5600}  # of memory without a speed; without a type, it is DDR5
_SLOT = re.compile(r"(.+?)((?: pcie ?[\d.]+(?: ?x ?\d+)?)?)")
_NUMBER = re.compile(r"(\d{1,5})(?: ?x ?| )(?=.)")
_SIZE = re.compile(r"(?<![a-z\d.])([1-9]\d{0,4}) ?gi?b(?![a-z/])")
_MEMORY = re.compile(
    r"(?:([1-9]\d?) ?x ?)?([1-9]\d{0,5}) ?gi?b(?: ?ddr([45])(?:[ -]?([1-9]\d{3,4})(?: ?x ?([1-9]\d?))?)?)?"
)
_FABRIC = re.compile(r"(?<=[\w)]) (nvlink|nvswitch)\b")  # after a device, without a comma
_LINK = re.compile(r"(.+?)(?: ?x ?\d{1,4})?")
_LIKE_DEVICE = re.compile(r"an? .*|\d+ ?x .*|.*\d ?gb\b.*|.*(?<!\d)\d{4}(?!\d).*")


def exact_words(words: str, known: Parts) -> tuple[str, Parts, list[str]]:
    """The exact words; the parts, with kinds whose memory `words` give; and the assumptions, a sentence each.

    Words that are not understood stay as they are. Raises ClusterError for a GPU with a size of memory that it does not have.
    """
    reader = _Reader(known)
    words = re.sub(r"\bmax\+ ?395\b", "max 395", words)
    exact = re.sub(r"\(([^()]*)\)", lambda box: f"({reader.box(box[1])})", words) if "(" in words else reader.box(words)
    return exact, known.model_copy(update={"kinds": known.kinds | reader.resized}), list(dict.fromkeys(reader.notes))


class _Reader:
    """Reads boxes, and keeps the kinds that it resized and its notes."""

    def __init__(self, known: Parts) -> None:
        self.known = known
        self.resized: dict[str, Part] = {}
        self.notes: list[str] = []
        self.names = {plain_name(kind): kind for kind in known.kinds} | _NAMES
        for kind, part in known.kinds.items():
            title = re.split(r" \d+ GB", part.title)[0].lower()
            for own in filter(_plain, (title, _MAKERS.sub("", title))):
                self.names.setdefault(_plain(own), kind)

    def box(self, words: str) -> str:
        """Devices and memory with `+` between them, then links after commas, in whatever order `words` has them."""
        parts = [[item.strip() for item in part.split("+")] for part in _FABRIC.sub(r" + \1", words).split(",")]
        given = [item for part in parts for item in part if item not in _NOTHING]
        if not all(given):
            return words
        if len(given) == 2 and re.fullmatch(_SIZE, beside := " ".join(_BESIDE_MEMORY.sub("", given[1]).split())):
            own = self._device(given[0])  # memory of a Mac is that of its GPU
            if own and _resizable(self.known.kinds[own[1]]) and self.known.kinds[own[1]].type == "gpu":
                given = [f"{given[0]} {beside}"]
        devices, links = [], []
        for item in given:
            exact = self._memory(item) or self._exact_device(item)
            link = known_name(found[1], self.known.links) if (found := _LINK.fullmatch(item)) else None
            if exact or (link is None and (item in parts[0] or _LIKE_DEVICE.fullmatch(item))):
                devices.append(exact or item)
            else:
                links.append(item)
        if any(_MEMORY.fullmatch(item) for item in devices):
            devices = [item for item in devices if item != "cpu"]
        return ", ".join([" + ".join(devices), *links])

    def _memory(self, item: str) -> str | None:
        """`64 GB RAM` as `64gb ddr5-5600`, or None if `item` is not a memory of the host."""
        text = " ".join(_BESIDE_MEMORY.sub("", item).split())
        found = _MEMORY.fullmatch(re.sub(r"(ddr[45](?:[ -]?\d{4,5})?) (.*gi?b)", r"\2 \1", text))
        if not found:
            return None
        number, size, generation, transfers, channels = found.groups()
        gib, generation = int(number or 1) * int(size), generation or "5"
        if not transfers:
            self.notes.append(f"{gib} GB of memory taken as DDR{generation}-{_TRANSFERS[generation]} in two channels.")
        memory = f"{gib}gb ddr{generation}-{transfers or _TRANSFERS[generation]}"
        return f"{memory} x{channels}" if channels else memory

    def _exact_device(self, item: str) -> str | None:
        """`a GeForce 4090` as `rtx4090`, or None if no kind is known by this name."""
        own = self._device(item)
        return own and f"{own[0]}{own[1]}{own[2]}"

    def _device(self, item: str) -> tuple[str, str, str] | None:
        """The number of devices, such as `2x `, or nothing; their kind; and their slot."""
        found = _SLOT.fullmatch(item)
        head, slot = (found[1], found[2]) if found else (item, "")
        if kind := self._kind(head):
            return "", kind, slot
        head = re.sub(r"^an? ", "", head)
        number = _NUMBER.match(head)
        kind = self._kind(head[number.end() :] if number else head)
        return (f"{number[1]}x " if number else "", kind, slot) if kind else None

    def _kind(self, text: str) -> str | None:
        """The kind of `text`, which may have the size of its memory. Raises ClusterError if the kind has another size."""
        if (kind := self._named(text)) or not (size := _SIZE.search(text)):
            return kind
        kind, gib = self._named(_SIZE.sub(" ", text)), int(size[1])
        if kind is None or _size(self.known.kinds[kind]) == gib:
            return kind
        if variant := self.names.get(plain_name(f"{kind}{gib}gb")):
            return variant
        if not _resizable(part := self.known.kinds[kind]):
            alike = [k for k in self.known.kinds if k == kind or k.startswith(f"{kind}_")]
            there = ", ".join(f"{k} has {_size(self.known.kinds[k]):g} GB" for k in alike)
            raise ClusterError(f"no {kind} has {gib} GB", f"{there}; or give your own figures: {kind}_{gib}gb{EXAMPLE}")
        bytes_ = round(part.memory_bytes * gib / _size(part))
        title, source = part.title.replace(f"{_size(part):g} GB", f"{gib} GB"), f"{part.source}. Here with {gib} GB"
        self.resized[f"{kind}_{gib}gb"] = part.model_copy(
            update={"title": title, "source": source, "memory_bytes": bytes_}
        )
        return f"{kind}_{gib}gb"

    def _named(self, text: str) -> str | None:
        """The kind with this name or title, with or without the maker; or whose name is this number after `rtx`, `gtx` or `rx`.

        Raises ClusterError if several kinds end in this number.
        """
        for word in (_plain(text), _plain(_MAKERS.sub("", text))):
            if kind := self.names.get(word):
                return kind
        ends = [name for name in self.names if name.endswith(word)] if word[:1].isdigit() else []
        ends = [*dict.fromkeys(self.names[name] for name in ends)]
        if len(ends) > 1 and len(word) > 2:
            raise ClusterError(f"{text.strip()!r} may be {' or '.join(ends)}", "write one of them")
        return ends[0] if len(ends) == 1 and plain_name(ends[0]).removesuffix(word) in _PREFIXES else None


def _plain(text: str) -> str:
    return re.sub(r"sxm\d", "sxm", plain_name(text))


def _size(part: Part) -> float:
    """The GB in its title."""
    found = re.search(r"([\d.]+) GB", part.title)
    return float(found[1]) if found else 0.0


def _resizable(part: Part) -> bool:
    """Whether the kind is sold with other sizes of memory: processors, alone or with a GPU."""
    return part.pcie is None and not part.shared_memory
