"""Importers of files. Importing this module reads no files."""

from __future__ import annotations

import re

from pydantic import Field

from placekit_core import ImporterComponent, Options, hookimpl


class FileOptions(Options):
    """Options of importer `file`."""

    path: str = Field("", description="graph file (.graph.npz), as `placekit graph export` writes it")


class JsonOptions(Options):
    """Options of importer `json`."""

    path: str = Field("", description="a program in JSON (docs/formats.md); required")


class DopplerOptions(Options):
    """Options of importer `doppler`."""

    path: str = Field("", description="a graph in Doppler's text format (docs/formats.md); required")


class MsrOptions(Options):
    """Options of importer `msr`."""

    path: str = Field(
        "", description="a graph with costs in the JSON format of dnn-partitioning (docs/formats.md); required"
    )


class PipeDreamOptions(Options):
    """Options of importer `pipedream`."""

    path: str = Field("", description="a profile in PipeDream's text format (docs/formats.md); required")


class ProfileOptions(Options):
    """Options of importer `profile`."""

    path: str = Field("", description="a profile of layers, or a folder of profiles (docs/formats.md); required")
    microbatch: int | None = Field(
        None, description="rows of the batch in a micro-batch; null: the profile has only one"
    )
    degree: int = Field(1, description="devices that split each operator; such a group counts as one device")
    kinds: dict[str, str] = Field({}, description="kinds to read, with their names on the machine; empty: all")
    output_bytes: int = Field(
        0, description="bytes that a layer sends to the next for one row of the batch; required for files of Metis"
    )


def is_graph_file(head: bytes) -> bool:
    """Whether a file that begins with `head` may be a graph file: a zip whose first file is a numpy array."""
    return re.match(rb"PK\x03\x04.{26}[^/]{1,200}\.npy", head, re.DOTALL) is not None


def is_json(head: bytes) -> bool:
    """Whether a file that begins with `head` is a program in JSON: `format` is among its first members."""
    return re.search(rb'"format"\s*:\s*"placekit-program"', head) is not None


def is_doppler(head: bytes) -> bool:
    """Whether a file that begins with `head` may be Doppler's: a number, then a line of numbers and commas."""
    return re.match(rb"(\xef\xbb\xbf)?[ \t]*\d+[ \t]*\r?\n[\d, \t]*(\r?\n|\Z)", head) is not None


def is_msr(head: bytes) -> bool:
    """Whether a file that begins with `head` is in the format of dnn-partitioning: an object with one of its members.

    Members come in any order, so the first may be a long list of nodes or edges.
    """
    if re.match(rb"(\xef\xbb\xbf)?\s*\{", head) is None or is_json(head):
        return False
    return re.search(rb'"(maxSizePerFPGA|maxFPGAs|maxCPUs|supportedOnFpga|fpgaLatency|sourceId)"\s*:', head) is not None


def is_pipedream(head: bytes) -> bool:
    """Whether a file that begins with `head` is a profile of PipeDream: its first line is a node, which `head` may cut off."""
    return re.match(rb"(\xef\xbb\xbf)?\s*\w+ -- [^\n]*( -- forward_compute_time=|\Z)", head) is not None


def is_profile(head: bytes) -> bool:
    """Whether a file that begins with `head` is a profile of layers: the first line names its columns."""
    return re.match(rb"(\xef\xbb\xbf)?layer,kind,microbatch,", head) is not None


@hookimpl
def placekit_importers() -> list[ImporterComponent]:
    """The importers of this package."""
    return [
        ImporterComponent(
            name="file",
            summary="a graph in placekit's own file format",
            config=FileOptions,
            target="placekit_formats.file_importer:FileImporter",
            files=(".graph.npz",),
            detect=is_graph_file,
            writes=True,
        ),
        ImporterComponent(
            name="json",
            summary="a program in JSON: operations, tensors, and optionally seconds and a machine",
            config=JsonOptions,
            target="placekit_formats.json_program:JsonImporter",
            files=(".json",),
            detect=is_json,
            writes=True,
        ),
        ImporterComponent(
            name="doppler",
            summary="a graph in the text format that Doppler's authors published",
            config=DopplerOptions,
            target="placekit_formats.doppler:DopplerImporter",
            paper="Yao et al. 2026, Doppler (ICLR)",
            files=(".txt",),
            detect=is_doppler,
        ),
        ImporterComponent(
            name="msr",
            summary="a graph with costs and machine in the JSON format of dnn-partitioning",
            config=MsrOptions,
            target="placekit_formats.msr:MsrImporter",
            paper="Tarnawski et al. 2020, Efficient Algorithms for Device Placement of DNN Graph Operators (NeurIPS)",
            files=(".json",),
            detect=is_msr,
            writes=(".msr.json",),
        ),
        ImporterComponent(
            name="pipedream",
            summary="a profile in the text format that PipeDream's authors published",
            config=PipeDreamOptions,
            target="placekit_formats.pipedream:PipeDreamImporter",
            paper="Narayanan et al. 2019, PipeDream (SOSP)",
            files=(".txt",),
            detect=is_pipedream,
        ),
        ImporterComponent(
            name="profile",
            summary="measured seconds and bytes of each layer by kind of device: a CSV, or profiles of Sailor or Metis",
            config=ProfileOptions,
            target="placekit_formats.profile:ProfileImporter",
            paper="Strati et al. 2025, Sailor (SOSP); Um et al. 2024, Metis (USENIX ATC)",
            files=(".csv",),
            detect=is_profile,
        ),
    ]
