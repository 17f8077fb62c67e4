"""Compares speeds that people measured with placekit's predictions for their command lines, and with its recommendations.

    python benchmarks/plan_questions.py [--write] [ID ...]

Questions are in plan_questions.yaml, with their sources. Rows of vLLM with tensor parallelism, of ollama and of other engines are
listed there, and not predicted. `--write` replaces results/plan_questions.md.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from placekit_runtimes.planning.plan import Plan, plan, strategies
from placekit_runtimes.planning.read_lines import read
from placekit_runtimes.planning.read_splits import split_of

from placekit_core import PlacekitError

HERE = Path(__file__).parent
FORMS = {"default split": "", "layers on the CPU": "", "--rpc": "-ngl 99 --rpc BOX:50052"}
"""Flags for words that stand for a runtime's defaults."""
DEFAULTS = {"prompt": 512, "generate": 200, "context": 4096}


def line_of(row: dict[str, Any]) -> str | None:
    """The command line of a row; None if placekit does not read it."""
    flags = str(row.get("flags", ""))
    flags = FORMS.get(flags, flags).removeprefix("llama.cpp ")
    if (flags and not flags.startswith("-")) or "RDMA" in flags or row.get("users", 1) > 100:
        return None  # hundreds of users wait for each other in vLLM
    rpc = " --rpc BOX:50052" if "TCP" in flags else ""
    return f"llama-server -m {{model}} {flags.partition(',')[0] if rpc else flags.replace('/', ',')}{rpc}"


def model_of(row: dict[str, Any], folder: Path) -> str:
    """The name of a model, or a folder with its configuration."""
    shape = row.get("shape")
    if shape is None or row["model"] != row["named"]:
        return str(row["model"])
    own = folder / row["model"]
    own.mkdir(exist_ok=True)
    config = {
        "model_type": "llama", "num_hidden_layers": shape["layers"], "hidden_size": shape["hidden"],
        "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv_heads"], "intermediate_size": shape["ffn"],
        "vocab_size": shape["vocab"],
    }  # fmt: skip
    (own / "config.json").write_text(json.dumps(config))
    return str(own)


def options_of(row: dict[str, Any]) -> dict[str, Any]:
    """Options of a plan for a row: a token at the depth at which it was measured."""
    o: dict[str, Any] = {"weights": row["weights"], "users": row.get("users", 1), "cache": row.get("cache", "f16")}
    o["generate"] = row.get("generate") or (row.get("tokens") or DEFAULTS["generate"] if "decode" in row else 1)
    o["prompt"] = (
        row.get("prompt") or row.get("depth") or (row.get("tokens") if "decode" not in row else 0) or DEFAULTS["prompt"]
    )
    o["context"] = max(row.get("context") or DEFAULTS["context"], o["prompt"] + o["generate"])
    return o


def predicted(row: dict[str, Any], model: str) -> tuple[float, float] | str:
    """Tokens per second of all users, and of a prompt, for the command line of a row; or why they cannot be predicted."""
    line = line_of(row)
    if line is None:
        return "not read"
    given = read(line.format(model=f"{row['named']}-{row['weights']}.gguf"))
    try:
        search = strategies(model, row["machine"], runtime="llamacpp", **options_of(row))["llamacpp"]
        split = split_of(given, search)
    except PlacekitError as e:
        return e.message
    decode_s, prompt_s = search.steps.seconds([split])
    lacking = search.steps.memory(split).lacking
    if lacking:
        return f"lacks {lacking / 2**30:.1f} GiB"
    o = search.question.options
    return o.users / float(decode_s[0]), o.prompt / float(prompt_s[0])


def recommended(row: dict[str, Any], model: str) -> tuple[str, float]:
    """The verdict of a plan and its tokens per second, for all runtimes that run the format."""
    try:
        found: Plan = plan(model, row["machine"], **options_of(row))
        best = found.best
    except PlacekitError as e:
        return e.message, float("nan")
    return f"{best.runtime}: {found.verdict}", found.question.options.users / best.decode_s


def answer(question: dict[str, Any], folder: Path) -> tuple[list[str], list[float]]:
    """The rows of a question as Markdown, and the errors of predictions."""
    head = {k: v for k, v in question.items() if k not in ("measured", "id", "source", "question")}
    out, errors, seen = (
        [f"**{question['question']}** ({question['machine']}; [{question['id']}]({question['source']}))", ""],
        [],
        {},
    )
    out += ["| model | measured with | measured | predicted | recommended |", "|---|---|---|---|---|"]
    for measured in question["measured"]:
        row = {**head, **measured, "named": head["model"]}
        model = model_of(row, folder)
        found = predicted(row, model)
        key = json.dumps({k: row.get(k) for k in ("model", "weights", "machine", "context", "depth")})
        if key not in seen:
            seen[key] = recommended(row, model)
        verdict, speed = seen[key]
        for name, i in (("decode", 0), ("decode_all", 0), ("prompt_speed", 1)):
            if name in row:
                own = found if isinstance(found, str) else f"{found[i]:,.1f}"
                if not isinstance(found, str):
                    errors.append(found[i] / row[name] - 1 if i == 0 else float("nan"))
                    own += f" ({found[i] / row[name] - 1:+.0%})"
                what = f"{row[name]:,}" + (" prompt" if i else "")
                best = f"{verdict}: {speed:.1f}" if not i else ""
                about = " ".join(str(row[k]) for k in ("model", "weights"))
                where = "".join(f" {k}={row[k]}" for k in ("machine", "context", "depth") if k in measured)
                out.append(f"| {about} | `{row.get('flags', '')}`{where} | {what} | {own} | {best} |")
    return [*out, ""], errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    questions = yaml.safe_load((HERE / "plan_questions.yaml").read_text())["questions"]
    chosen = [q for q in questions if not given.ids or q["id"] in given.ids]
    out, errors = [], []
    with tempfile.TemporaryDirectory() as folder:
        for question in chosen:
            lines, own = answer(question, Path(folder))
            print("\n".join(lines), flush=True)
            out += lines
            errors += [e for e in own if e == e]
    sizes = sorted(abs(e) for e in errors)
    end = (
        f"{len(sizes)} speeds of tokens are predicted: half of them within {median(sizes):.0%}, nine of ten within"
        f" {sizes[min(int(0.9 * len(sizes)), len(sizes) - 1)]:.0%}."
    )
    print(end)
    if given.write:
        text = re.sub(r"^    ", "", (__doc__ or "").partition("\n\n")[0], flags=re.M)
        page = (
            f"# Questions of people\n\n{text}\n\n`python benchmarks/plan_questions.py --write`\n\n{end}\n\n"
            + "\n".join(out)
        )
        (HERE / "results" / "plan_questions.md").write_text(page.rstrip() + "\n")


if __name__ == "__main__":
    main()
