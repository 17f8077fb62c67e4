"""The samples of Placeto's three families of graphs (Addanki et al. 2019, "Placeto", section 3.1). Imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numpy.random import Generator

from placekit_zoo.enas import SampledCnn, SampledRnn
from placekit_zoo.family import FamilyImporter
from placekit_zoo.family_options import PlacetoCifar10Options, PlacetoNmtOptions, PlacetoPtbOptions

if TYPE_CHECKING:
    from placekit_torch.step import Step

OPERATIONS = ("separable3", "separable5", "average", "maximum", "identity")
ACTIVATIONS = ("tanh", "relu", "sigmoid", "identity")


def sample_cell(nodes: int, rng: Generator) -> list[Any]:
    """Nodes of a cell; each reads two of the states before it, drawn uniformly (ENAS, section 2.4).

    A cell that does not read its younger input, state 1, is sampled again, because the cell before it would be unused.
    """
    while True:
        cell = [
            [part for _ in range(2) for part in (str(rng.choice(OPERATIONS)), int(rng.integers(2 + i)))]
            for i in range(nodes)
        ]
        if any(1 in (left, right) for _, left, _, right in cell):
            return cell


def sample_recurrent_cell(nodes: int, rng: Generator) -> list[Any]:
    """Nodes of a recurrent cell; each reads one of the nodes before it, drawn uniformly (ENAS, section 2.1)."""
    return [[int(rng.integers(i)) if i else -1, str(rng.choice(ACTIVATIONS))] for i in range(nodes)]


class PlacetoCifar10(FamilyImporter):
    """Importer `placeto_cifar10`: classifiers of ENAS's micro search space."""

    name = "placeto_cifar10"
    options_class = PlacetoCifar10Options

    def sample(self, member: int) -> SampledCnn:
        """Number of cells, width, and the nodes of both kinds of cells, equally many in both."""
        o: PlacetoCifar10Options = self.options
        rng = self.rng(member)
        nodes = int(rng.integers(o.nodes[0], o.nodes[1] + 1))
        return {
            "cells": int(rng.integers(o.cells[0], o.cells[1] + 1)),
            "width": int(rng.choice(o.widths)),
            "convolution": sample_cell(nodes, rng),
            "reduction": sample_cell(nodes, rng),
        }

    def step(self, sampled: Any) -> Step:
        """The training step of a member."""
        from placekit_zoo.enas_cnn import step

        return step(self.options, sampled)


class PlacetoPtb(FamilyImporter):
    """Importer `placeto_ptb`: language models of ENAS's recurrent search space."""

    name = "placeto_ptb"
    options_class = PlacetoPtbOptions

    def sample(self, member: int) -> SampledRnn:
        """Steps and the nodes of the cell."""
        o: PlacetoPtbOptions = self.options
        rng = self.rng(member)
        return {
            "steps": int(rng.integers(o.steps[0], o.steps[1] + 1)),
            "cell": sample_recurrent_cell(int(rng.integers(o.nodes[0], o.nodes[1] + 1)), rng),
        }

    def step(self, sampled: Any) -> Step:
        """The training step of a member."""
        from placekit_zoo.enas_rnn import step

        return step(self.options, sampled)


class PlacetoNmt(FamilyImporter):
    """Importer `placeto_nmt`: `nmt` with sentences of several lengths, in batches of several sizes."""

    name = "placeto_nmt"
    options_class = PlacetoNmtOptions

    def sample(self, member: int) -> dict[str, int]:
        """Length and batch; no two members have the same."""
        o: PlacetoNmtOptions = self.options
        pairs = o.pairs()
        length, batch = pairs[int(self.rng().permutation(len(pairs))[member])]
        return {"length": length, "batch": batch}

    def step(self, sampled: Any) -> Step:
        """The training step of a member."""
        from placekit_zoo.nmt import NmtImporter

        o: PlacetoNmtOptions = self.options
        own = {key: getattr(o, key) for key in ("layers", "hidden", "vocabulary", "dropout", "optimizer")}
        return NmtImporter(**sampled, **own).step()
