"""The tensor programs of Doppler (Yao et al. 2026, appendix C), with decompositions for 4 and 8 devices."""

from __future__ import annotations

from collections.abc import Mapping

from placekit_core import ImporterError
from placekit_einsum.options import SIZES, EinsumOptions
from placekit_einsum.program import Tensor, TensorProgram

Parts = Mapping[str, Mapping[str, int]]

LLAMA: dict[tuple[str, int], Parts] = {
    ("llama_block", 4): {
        "norm": {"s": 4}, "project": {"s": 2, "e": 4, "h": 2}, "turns": {"s": 1},
        "attend": {"h": 2, "q": 1, "k": 2}, "mask": {"q": 1, "k": 1}, "output": {"q": 4, "h": 2, "e": 1},
    },
    ("llama_layer", 4): {
        "norm": {"s": 4}, "project": {"s": 2, "e": 2, "h": 2}, "turns": {"s": 2},
        "attend": {"h": 1, "q": 2, "k": 2}, "mask": {"q": 1, "k": 1}, "output": {"q": 2, "h": 2, "e": 1},
        "up": {"s": 2, "e": 2, "f": 2}, "down": {"s": 4, "f": 2, "e": 1},
    },
    ("llama_block", 8): {
        "norm": {"s": 8}, "project": {"s": 2, "e": 2, "h": 4}, "turns": {"s": 2},
        "attend": {"h": 1, "q": 4, "k": 2}, "mask": {"q": 4, "k": 2}, "output": {"q": 4, "h": 2, "e": 1},
    },
    ("llama_layer", 8): {
        "norm": {"s": 8}, "project": {"s": 1, "e": 2, "h": 4}, "turns": {"s": 1},
        "attend": {"h": 4, "q": 1, "k": 2}, "mask": {"q": 1, "k": 2}, "output": {"q": 2, "h": 4, "e": 1},
        "up": {"s": 2, "e": 2, "f": 4}, "down": {"s": 4, "f": 4, "e": 1},
    },
}  # fmt: skip
"""Parts of each step of the Llama programs, by program and number of devices.

The paper does not say how its graphs are split. These parts give the paper's numbers of operations (182 and 229 for 4
devices, 302 and 367 for 8). Of all decompositions with these numbers, they have the best makespan by ETF on p100x4 and v100x8.
"""


def build(options: EinsumOptions) -> TensorProgram:
    """The tensor program that the options describe. Raises ImporterError for sizes that do not split."""
    sizes = SIZES[options.program] | options.sizes
    if options.program == "chainmm":
        return chainmm(sizes["n"], devices=options.devices, parts=options.parts)
    if options.program == "ffnn":
        return ffnn(**sizes, devices=options.devices, biases=options.biases, parts=options.parts)
    t = TensorProgram(called(f"{options.program}_sharded", options.devices), options.parts)
    at = LLAMA[options.program, options.devices]
    x = attention(t, t.input("x", "se", (sizes["sequence"], sizes["embedding"])), sizes["heads"], at)
    if options.program == "llama_layer":
        feed_forward(t, x, sizes["feed_forward"], at)
    return t


def called(program: str, devices: int) -> str:
    """The name of a program's graph and of its workload."""
    return program if devices == 4 else f"{program}_{devices}"


def chainmm(n: int, *, devices: int = 4, parts: Parts | None = None) -> TensorProgram:
    """A B + C (D E), matrices of n x n; every product has 4 shards per device."""
    t = TensorProgram(called("chainmm", devices), parts)
    a, b, c, d, e = (t.input(name, "ij", (n, n), scale=n**-0.25) for name in "ABCDE")
    m = devices // 4
    de = t.einsum("DE", "ik,kj->ij", d, e, parts={"i": 2 * m, "k": 4, "j": 2})
    cde = t.einsum("CDE", "ik,kj->ij", c, de, parts={"i": 4, "k": 2 * m, "j": 2})
    ab = t.einsum("AB", "ik,kj->ij", a, b, parts={"i": 4, "k": 2 * m, "j": 2})
    t.apply("sum", "add", "ij,ij->ij", ab, cde)
    return t


def ffnn(
    rows: int, features: int, hidden: int, classes: int, *, devices: int = 4, biases: bool = False,
    parts: Parts | None = None,
) -> TensorProgram:  # fmt: skip
    """Softmax(ReLU(X W1 [+ b1]) W2 [+ b2]); every expression has 4 shards per device."""
    t = TensorProgram(called("ffnn_sharded", devices), parts)
    x = t.input("X", "ij", (rows, features))
    w1 = t.input("W1", "jk", (features, hidden), scale=features**-0.5)
    w2 = t.input("W2", "kl", (hidden, classes), scale=hidden**-0.5)
    y = t.einsum("XW1", "ij,jk->ik", x, w1, parts={"i": devices, "k": 4})
    if biases:
        y = t.apply("hidden", "add", "ik,k->ik", y, t.input("b1", "k", (hidden,)))
    y = t.einsum("HW2", "ik,kl->il", t.apply("relu", "relu", "ik->ik", y), w2)
    rows_apart = {"i": 4 * devices}
    if biases:
        y = t.apply("logits", "add", "il,l->il", y, t.input("b2", "l", (classes,)), parts=rows_apart)
    t.softmax("softmax", "il", y, parts=rows_apart)
    return t


def norm(t: TensorProgram, name: str, x: Tensor, parts: Mapping[str, int]) -> Tensor:
    """RMSNorm [s, e] (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + 1e-6) * weight."""
    weight = t.input(f"{name}_weight", "e", (x.shape[1],))
    square = t.apply(f"{name}_square", "square", "se->se", x, parts=parts)
    total = t.reduce(f"{name}_sum", "sum", "se->s", square)
    inverse = t.apply(f"{name}_rsqrt", "rsqrt", "s->s", total, scale=1 / x.shape[1], shift=1e-6)
    scaled = t.apply(f"{name}_scaled", "mul", "se,s->se", x, inverse, parts=parts)
    return t.apply(name, "mul", "se,e->se", scaled, weight, parts=parts)


def rotary(t: TensorProgram, name: str, x: Tensor, turns: Tensor) -> Tensor:
    """Rotary embedding of [s, h, d] (Su et al. 2021): pairs of numbers are complex, and multiplied by `turns` [s, d / 2]."""
    turned = t.apply(f"{name}_turned", "mul", "shd,sd->shd", t.complexer(f"{name}_complex", "shd", x), turns)
    return t.complexer(f"{name}_rotary", "shd", turned)


def attention(t: TensorProgram, x: Tensor, heads: int, at: Parts) -> Tensor:
    """The attention block of a Llama layer on [s, e]: norm, causal attention with rotary embedding, residual."""
    sequence, e = x.shape
    if e % (2 * heads):
        raise ImporterError(
            f"{heads} heads do not divide an embedding of {e} into even widths", f"use a multiple of {2 * heads}"
        )
    d = e // heads
    y = norm(t, "norm1", x, at["norm"])
    turns = t.complexer("turns", "sd", t.input("rotary", "sd", (sequence, d), values="rotary"), parts=at["turns"])
    mask = t.fill("mask", "qk", (sequence, sequence), 0.0, above=-float("inf"), parts=at["mask"])
    q, k, v = (
        t.einsum(name, "se,ehd->shd", y, t.input(f"W{name}", "ehd", (e, heads, d), scale=e**-0.5), parts=at["project"])
        for name in "qkv"
    )
    q, k = rotary(t, "q", q, turns), rotary(t, "k", k, turns)
    scores = t.einsum("scores", "qhd,khd->hqk", q, k, parts=at["attend"])
    scaled = t.apply("scaled", "identity", "hqk->hqk", scores, scale=d**-0.5)
    weights = t.softmax("softmax", "hqk", t.apply("masked", "add", "hqk,qk->hqk", scaled, mask))
    context = t.einsum("context", "hqk,khd->qhd", weights, v)
    wo = t.input("Wo", "hde", (heads, d, e), scale=e**-0.5)
    out = t.einsum("attention", "qhd,hde->qe", context, wo, parts=at["output"])
    return t.apply("residual1", "add", "se,se->se", x, out, parts=at["norm"])


def feed_forward(t: TensorProgram, x: Tensor, width: int, at: Parts) -> Tensor:
    """The rest of a Llama layer on [s, e]: norm, W2 (SiLU(x W1) * x W3), residual."""
    e = x.shape[1]
    y = norm(t, "norm2", x, at["norm"])
    w1, w3 = (t.input(name, "ef", (e, width), scale=e**-0.5) for name in ("W1", "W3"))
    w2 = t.input("W2", "fe", (width, e), scale=width**-0.5)
    gate, up = (t.einsum(n, "se,ef->sf", y, w, parts=at["up"]) for n, w in (("gate", w1), ("up", w3)))
    hidden = t.apply("hidden", "mul", "sf,sf->sf", t.apply("silu", "silu", "sf->sf", gate), up)
    out = t.einsum("down", "sf,fe->se", hidden, w2, parts=at["down"])
    return t.apply("residual2", "add", "se,se->se", x, out, parts=at["norm"])
