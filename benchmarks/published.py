"""Makes the table of published speeds that `placekit accuracy` predicts, from a collection made by others.

    python benchmarks/published.py [--write]

Reads `published/llm_speed.csv` in the folder that `PLACEKIT_SAMPLES` names and writes `measurements.csv` and `left_out.csv` of
placekit-accuracy: facts only. Rows whose program or placement placekit cannot know are left out and counted by reason.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "plugins" / "commands" / "placekit-accuracy" / "placekit_accuracy"
KINDS = {
    "a100sxm": "a100", "a100pcie": "a100_pcie", "a100": "a100_pcie", "rtxa6000": "a6000", "rtxa4000": "a4000",
    "rtx4070s": "rtx4070super", "rtx4070tis": "rtx4070tisuper", "h100pcie": "h100_pcie", "8060s": "strix_halo",
    "arcb70": "b70", "arcb580": "b580", "arca770": "a770", "v100sxm": "v100", "rtx5090m": "rtx5090_laptop", "w7700": "w7700",
    "rtx4060ti-16": "rtx4060ti_16gb", "rtx5060ti-16": "rtx5060ti_16gb", "890m": "radeon_890m", "a10g": "a10g",
}  # fmt: skip
"""Names of the collection, with the memory where it matters, and kinds of `placekit cluster kinds`."""
MEMORY = {
    "epyc9355": "768gb ddr5-6000 x12", "tr7965wx": "512gb ddr5-4800 x8", "9950x": "192gb ddr5-6400 x2",
    "7800x3d": "192gb ddr5-6000 x2", "Xeon6454S": "512gb ddr5-4800 x8",
}  # fmt: skip
"""Memory of hosts that the source states; EPYC 9005 takes DDR5-6000."""
MODELS = {
    "THUDM_GLM-Z1-32B-0414-IQ4_XS.gguf": "GLM-Z1-32B", "deepseek2 671B Q8_0": "DeepSeek-V3", "DeepSeek-V3/R1 671B": "DeepSeek-V3",
    "DeepSeek-V3/R1": "DeepSeek-V3", "DeepSeek-R1": "DeepSeek-V3", "qwen3moe ?B Q2_K - Medium": "Qwen3-235B-A22B",
    "qwen3moe ?B IQ3_K - 3.4325 bpw": "Qwen3-235B-A22B", "Qwen3.8-27B (hybrid dense)": "Qwen3.8-27B",
    "Qwen3-0.6B-GGUF": "Qwen3-0.6B", "Qwen3-1.7B-GGUF": "Qwen3-1.7B",
    "llama-2-7b.Q4_0": "Llama-2-7B", "GLM-4.7-Flash-BF16~2": "GLM-4.7-Flash",
    "Phi-4-mini-reasoning-GGUF": "Phi-4-mini", "Qwen3.6-35B-A3B-GGUF": "Qwen3.6-35B-A3B",
    "Ornstein3.6-35B-A3B-GGUF": "Qwen3.6-35B-A3B",
}  # fmt: skip
UNKNOWN = (
    "NVIDIA-Nemotron", "gemma-4", "LFM2.5", "Agents", "Carnice", "MiniCPM5", "Trinity", "Qwen3.5-9B", "diffusion", "Tess",
)  # fmt: skip
CUT = 300  # characters: the collection cuts longer texts
OTHER = "the source does not state"
COLUMNS = (
    "id", "devices", "links", "memory", "runtime", "model", "quantisation", "bytes", "test", "depth", "batch", "ubatch", "split",
    "held_mib", "flash", "tokens_per_s", "source",
)  # fmt: skip


def reason(row: dict[str, str]) -> str:
    """Why a row is left out; empty if it stays."""
    split, test = row["split"], row["test"]
    if row["suspicious"]:
        return "not believed: far from the same card elsewhere, or faster than its memory"
    if row["spec_decoding"] != "no":
        return "speculative decoding"
    if not row["model"] or (row["note"].startswith("scraped") and "-p " in split):
        return f"{OTHER} what was measured"
    if row["model"].startswith(UNKNOWN):
        return "a model whose shape is not in the table, or with layers of other kinds"
    if "_R4" in row["note"]:
        return "weights in a form that only the CPU could compute"
    if row["model"].startswith(("Qwen3-Next", "Qwen3.5-35B")) and re.search("b8076|master|fork", row["build_date"]):
        return "recurrent layers of many small kernels, which llama.cpp fused in March 2026"
    if row["kind"] == "rpc":
        return "over a network"
    if "cache" in row["runtime"] or "VRAM cache" in split:
        return "experts are cached on the GPU"
    if "6 experts" in row["note"] or "ser=" in split:
        return "fewer experts than the model has"
    several = row["n_dev"] != "1" and re.search("(?i)vllm|mlc", row["runtime"])
    if several or re.search(r"(?<!override-)tensor|row|TP|graph", split):
        return "operations split over devices (tensor or row split)"
    if row["kind"] == "multi_gpu" and not split and row["note"].startswith("scraped"):
        return f"{OTHER} the split"
    if "+" not in row["devices"] and row["devices"].startswith("cpu") and not memory(row):
        return f"{OTHER} the host's memory"
    if "cpu" in row["devices"] and not memory(row):
        return f"{OTHER} the host's memory"
    if "cpu:2x" in row["devices"]:
        return "a host with two sockets, each with memory of its own"
    if row["kind"] == "moe_offload" and not re.search("exps|ffn|experts on CPU", split):
        return f"{OTHER} the split"
    if len(split) == CUT or (row["kind"] == "multi_gpu" and row["device_bytes"]):
        return f"{OTHER} the split"
    if test == "pp (turn 1)" or "NVFP4" in row["quantisation"] or not re.fullmatch(r"(pp|tg)\D*\d*.*", test):
        return f"{OTHER} what was measured"
    return ""


def memory(row: dict[str, str]) -> str:
    """The memory of the host, in words."""
    found = re.search(r"cpu:(?:2x)?(\w+)", row["devices"])
    return MEMORY.get(found[1], "") if found else ""


def facts(row: dict[str, str]) -> list[str]:
    """The columns of a row that stays."""
    kinds: list[str] = []
    for name in row["devices"].split("+"):
        kind, _, gigabytes = name.partition("-")
        if not name.startswith("cpu:"):
            kinds.append(f"{KINDS.get(name, KINDS.get(kind, _apple(kind)))}-{gigabytes.split('-')[-1]}")
    test = row["test"].replace("(eval)", "").replace("~", "")
    number = re.search(r"(?<![R ])\d+|\d{2,}", test)
    tokens = number[0] if number else "128"
    batch, ubatch = row["batch"], ""
    if batch.startswith("ub"):
        batch, ubatch = "1", batch[2:]
    if found := re.search(r"(?:-ub |ubatch=)(\d+)", row["split"]):
        ubatch = found[1]
    elif "sweep-bench" in row["note"] and test.startswith("pp"):
        ubatch = tokens
    held = json.loads(row["device_bytes"]) if row["device_bytes"] else {}
    links = row["links"] if "eGPU" in row["links"] else ""
    return [
        row["id"], "+".join(kinds), "pcie3 x16,pcie3 x4" if links else "", memory(row), row["runtime"].strip(),
        MODELS.get(row["model"], re.sub("-(UD|Instruct)-.*", "", row["model"])), row["quantisation"], row["model_bytes"],
        test[:2] + tokens, row["context_depth"] or "0", batch, ubatch, plain_split(row["split"]),
        " ".join(f"{k}:{v}" for k, v in held.items()), {"on": "1", "1": "1", "off": "0"}.get(row["flash_attention"], ""),
        row["tokens_per_s"], source(row["source"]),
    ]  # fmt: skip


def _apple(kind: str) -> str:
    """`m2ultra` as `m2_ultra`."""
    return re.sub(r"^(m\d)([a-z]+)", r"\1_\2", kind)


def plain_split(text: str) -> str:
    """How weights are divided: tensor overrides (REGEX=DEVICE, first match first), or shares of the layers."""
    if "experts on CPU" in text:
        return "exps=CPU"
    rules = re.findall(r"-(?:ot|-override-tensor) \"?([^\s\"]+)\"?", text)
    if rules:
        return " ".join(rule for given in rules for rule in _with_devices(given))
    shares = re.search(r"-ts ([\d,]+)", text)
    return f"-ts {shares[1]}" if shares else ""


def _with_devices(rule: str) -> list[str]:
    """`a,b=CPU` and `a=CPU,b=CPU` as two rules; others are one."""
    pattern, _, device = rule.rpartition("=")
    parts = pattern.split(",") if "(" not in pattern else [pattern]
    return [f"{p.partition('=')[0]}={device}" for p in parts]


def source(text: str) -> str:
    """Where a row was published, without titles."""
    text = text.removeprefix("github:").removeprefix("https://")
    text = text.replace("github-data/", "").replace("pull_requests", "PR")
    text = re.sub(r"(issues|discussions|PR)/(\d+) - .*", r"\1 \2", text)
    text = re.sub(r"Inference/.*/", "Inference/", re.sub(r"benchmark/results.*", "benchmark/results", text))
    return re.sub(r"/benchmark_cache.json id \w+", "", re.sub(r" \(.*| id \w+", "", text))


def main() -> int:
    """Compare or write the two files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="replace the files")
    write = parser.parse_args().write
    with (Path(os.environ["PLACEKIT_SAMPLES"]) / "published" / "llm_speed.csv").open() as file:
        rows = list(csv.DictReader(file))
    out = Counter(why for row in rows if (why := reason(row)))
    files: dict[str, list[Sequence[str]]] = {
        "measurements.csv": [COLUMNS, *(facts(row) for row in rows if not reason(row))],
        "left_out.csv": [("rows", "reason"), *((str(n), why) for why, n in out.most_common())],
    }
    changed = 0
    for name, lines in files.items():
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(lines)
        path = DATA / name
        if not path.is_file() or path.read_text() != buffer.getvalue():
            changed += 1
            print(f"{name} {'written' if write else 'differs'}: {len(lines) - 1} rows")
            if write:
                path.write_text(buffer.getvalue())
    return int(bool(changed) and not write)


if __name__ == "__main__":
    raise SystemExit(main())
