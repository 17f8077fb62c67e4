"""Command lines of llama.cpp and vLLM are read as they are written, and wrong ones get one clear error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from placekit_models.checkpoint.sources import find
from placekit_runtimes import evaluate_line
from placekit_runtimes.evaluate import main
from placekit_runtimes.planning.lines import lines
from placekit_runtimes.planning.plan import strategies
from placekit_runtimes.planning.question import RuntimeName
from placekit_runtimes.planning.read_lines import is_line, read
from placekit_runtimes.planning.read_splits import split_of
from placekit_runtimes.planning.regular import Regular, Regulars
from placekit_runtimes.planning.split import Split
from placekit_runtimes.planning.strategies import Row, Strategies

from placekit_core import PlacekitError, installed

TWO = "rtx4090 + rtx3060 pcie3 x4 + 64GB ddr5-5600"
MOE, DENSE = "Qwen3-30B-A3B", "Llama-3.2-3B"


@cache
def search(model: str = MOE, machine: str = TWO, runtime: RuntimeName = "llamacpp", **options: Any) -> Strategies:
    weights = "q4_k_m" if runtime == "llamacpp" else "awq"
    return strategies(model, machine, weights=weights, **options)[runtime]


def split(text: str, own: Strategies | None = None) -> Split:
    return split_of(read(text), own or search())


def held(found: Split, own: Strategies, name: str) -> list[int]:
    """Devices of the tensor with this name in each layer."""
    layout = own.steps.layout
    return [int(found.held[layout.index[f"blk.{i}.{name}"]]) for i in range(layout.layers)]


def random_regular(regulars: Regulars, random: Random) -> Regular:
    chain = random.choice(list(regulars.chains()))
    layers = regulars.layout.layers
    cuts = sorted(random.choice([0, layers, random.randint(0, layers)]) for _ in chain[1:])
    counts = tuple(b - a for a, b in zip([0, *cuts], [*cuts, layers], strict=True))
    away = []
    for i, count in enumerate(counts):
        row = [0] * len(regulars.targets)
        for t in random.sample(range(len(row)), min(len(row), random.randint(0, 2))):
            if regulars.targets[t] != chain[i]:
                row[t] = random.randint(0, count - sum(row))
        away.append(tuple(row))
    return Regular(chain, counts, tuple(away), (0,) * len(chain))


MACHINES = (
    "rtx4090",
    "rtx4090 + 64GB ddr5-5600",
    TWO,
    "rtx3060 + 2x rtx3090 + rtx4090 + 128GB ddr5-5600",
    "2x rx7900xtx + 64GB ddr5-5600",
    "(2x rtx4090 + 64GB ddr5-5600) + (rtx3090), 10gbe",
)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("model", [MOE, DENSE, "DeepSeek-V2-Lite"])
def test_what_is_written_for_llamacpp_is_read_back(model: str, machine: str) -> None:
    own, random = search(model, machine), Random(model + machine)
    for _ in range(8):
        wanted = own.regulars.split(random_regular(own.regulars, random))
        text = lines(Row("llamacpp", "", wanted), own.steps)
        found = split(text, own)
        assert found.home.tolist() == wanted.home.tolist(), text
        assert found.held.tolist() == wanted.held.tolist(), text


@pytest.mark.parametrize("machine", MACHINES[1:-1])  # over several boxes the line leaves the order to Ray
@pytest.mark.parametrize("model", [MOE, DENSE])
def test_what_is_written_for_vllm_is_read_back(model: str, machine: str) -> None:
    own, random = search(model, machine, "vllm"), Random(model + machine)
    for turn in range(20):
        regular = random_regular(own.regulars, random)
        if turn % 2:  # weights in host memory, on one GPU: a line has one number for all
            layers = own.steps.layout.layers
            regular = Regular(regular.chain[:1], (layers,), ((),), (random.randint(1, layers),))
        wanted = own.regulars.split(regular)
        text = lines(Row("vllm", "", wanted), own.steps)
        found = split(text, own)
        assert found.home.tolist() == wanted.home.tolist(), text
        assert found.streams == wanted.streams
        large = own.steps.layout.bytes > 2**20  # the number is rounded down, so that norms may stay
        assert found.held[large].tolist() == wanted.held[large].tolist(), text


def test_options_are_read_back() -> None:
    own = search(context=4096, users=3, cache="q8_0", ubatch=256)
    wanted = own.regulars.split(Regular.plain(own.question.gpus[:1], (48,), len(own.regulars.targets)))
    line = read(lines(Row("llamacpp", "", wanted), own.steps))
    assert line.options() == {"context": 4096, "users": 3, "cache": "q8_0", "ubatch": 256}
    own = search(runtime="vllm", context=4096, users=3, cache="fp8")
    line = read(lines(Row("vllm", "", wanted), own.steps))
    assert line.options() == {"context": 4096, "users": 3, "cache": "fp8"}


@pytest.mark.parametrize("flags", [
    "-ngl 99 -ts 3,1 --n-cpu-moe 2", "--gpu-layers=all --tensor-split=3,1 -ncmoe 2",
    r"-ngl 99 -ts 3,1 -ot 'blk\.[01]\.ffn_.*_exps=CPU'", r"-ngl 99 -ts 3,1 -ot 'blk\.0\.ffn_.*_exps=CPU,blk\.1\.ffn_.*_exps=CPU'",
    r"-ngl 99 -ts 3,1 -ot 'blk\.0\..*exps=CPU' -ot 'blk\.1\..*_exps=CPU' -ot 'blk\.[01]\..*_exps=CUDA0'",
])  # fmt: skip
def test_ways_to_say_the_same(flags: str) -> None:
    found, own = split(f"./build/bin/llama-server -m x.gguf {flags}"), search()
    assert found.home.tolist() == [0] * 37 + [1] * 12
    for name in ("ffn_up_exps", "ffn_gate_exps", "ffn_down_exps"):
        assert held(found, own, name) == [2, 2] + [0] * 35 + [1] * 11
    assert held(found, own, "attn_q") == found.home[:-1].tolist()
    assert found.held[own.steps.layout.index["token_embd"]] == 2


def test_variables_continued_rows_and_the_last_of_two() -> None:
    text = "LLAMA_ARG_N_GPU_LAYERS=20 LLAMA_ARG_CPU_MOE=0 llama-server \\\n  -m x.gguf \\\n -ngl 30 --device CUDA1"
    assert split(text).home.tolist() == [2] * 19 + [1] * 30
    assert split("LLAMA_ARG_N_GPU_LAYERS=20 llama-server -m x --device CUDA1").home.tolist() == [2] * 29 + [1] * 20
    assert split("CUDA_VISIBLE_DEVICES=1 llama-server -m x.gguf -ngl 99").home.tolist() == [1] * 49
    assert split("CUDA_VISIBLE_DEVICES=1,0 llama-server -m x.gguf -ngl 99 -dev CUDA0").home.tolist() == [1] * 49
    assert split("llama-server -m x.gguf -ngl 99 -sm none -mg 1").home.tolist() == [1] * 49
    assert split("llama-server -m x.gguf --device none").home.tolist() == [2] * 49


def test_any_tensor_can_be_moved() -> None:
    own = search()
    found = split(r"llama-server -m x.gguf -ngl 99 --device CUDA0 -ot 'attn_k\.weight=CPU,token_embd=CUDA0'")
    assert held(found, own, "attn_k") == [2] * 48
    assert held(found, own, "attn_q") == [0] * 48
    assert found.held[own.steps.layout.index["token_embd"]] == 0


def test_without_layers_llamacpp_fits_by_itself() -> None:
    own = search()
    assert split("llama-server -m x.gguf").key == own._llamacpp().key
    assert (
        split("llama-server -m x.gguf --fit off").home.tolist() == split("llama-server -m x.gguf -ngl 99").home.tolist()
    )
    assert split("llama-server -m x.gguf -ngl auto -ts 1,1").home.tolist() == [0] * 25 + [1] * 24
    assert set(split("llama-server -m x.gguf --device CUDA1").home.tolist()) <= {1, 2}


def test_a_tied_output_goes_with_the_embedding() -> None:
    own = search(DENSE)
    assert "output.weight" not in {t.name for t in find(DENSE, "q4_k_m").tensors}
    found = split("llama-server -m x.gguf -ngl 99 --device CUDA0 -ot token_embd=CPU", own)
    assert found.held[own.steps.layout.index["output"]] == own.question.cpu


def test_the_model_of_a_line() -> None:
    for flags in (
        "-m /models/Qwen3-30B-A3B-Q4_K_M.gguf", "-m Qwen3-30B-A3B.q4_k_m-00001-of-00002.gguf",
        "-hf Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", "-hf unsloth/Qwen3-30B-A3B-GGUF",
    ):  # fmt: skip
        line = read(f"llama-server {flags}")
        assert line.model() == ("Qwen3-30B-A3B", "q4_k_m")
        assert "is not on this computer" in line.notes[0]
    assert read("vllm serve --enforce-eager Qwen/Qwen3-14B").model() == ("Qwen/Qwen3-14B", None)
    assert read("vllm serve Qwen/Qwen3-14B-AWQ --quantization awq_marlin").model() == ("Qwen/Qwen3-14B-AWQ", "awq")
    assert read("python -m vllm.entrypoints.openai.api_server --model a/b").model() == ("a/b", None)
    assert read("llama-server -m gpt-oss-20b-mxfp4.gguf").model() == ("gpt-oss-20b", "mxfp4_moe")


def test_how_a_model_is_used() -> None:
    assert read("llama-server -c 16384 -np 4 -ctk q8_0 -ctv q4_0 -ub 2048 -b 1024").options() == {
        "context": 4096, "users": 4, "cache": "q8_0", "ubatch": 1024,
    }  # fmt: skip
    assert read("llama-bench -p 1000 -n 50").options() == {
        "cache": "f16", "prompt": 1000, "generate": 50, "context": 1050,
    }  # fmt: skip
    assert read("vllm serve m --max_model_len 32K --kv-cache-dtype fp8_e4m3").options() == {
        "context": 32768,
        "cache": "fp8",
    }


def test_unknown_flags_are_noted_and_known_ones_are_not() -> None:
    quiet = "llama-server -m x --host 0.0.0.0 --port 80 --jinja --temp 0.6 -t 8 --no-mmap --seed -1"
    assert read(quiet).notes == []
    assert read(f"{quiet} --wonder 3 -md draft.gguf").notes == [
        "ignored, because placekit does not know it: --wonder, -md"
    ]
    line = read("llama-server -m x -ngl 99 -ot nothing=CPU")
    split_of(line, search())
    assert line.notes == ["--override-tensor: no tensor matches 'nothing'"]


WRONG = {
    "llama-server -m x -ngl 99 -ts 1,1,1": "3 shares, but llama.cpp uses 2 GPUs",
    "llama-server -m x -ngl 99 -ts a": "'a' is not a number",
    "llama-server -m x -ngl 99 -ts -1,1": "negative",
    "llama-server -m x -ngl many": "'many' is not a number",
    "llama-server -m x -ngl": "-ngl has no value",
    "llama-server -m x -sm row": "whole tensors",
    "llama-server -m x -sm diagonal": "no --split-mode diagonal",
    "llama-server -m x -sm none -mg 4": "--main-gpu 4 does not exist",
    "llama-server -m x --device CUDA7": "'CUDA7', which does not exist",
    "llama-server -m x -ot 'exps=GPU0'": "'GPU0', which does not exist",
    "llama-server -m x -ot exps": "not PATTERN=BUFFER",
    "llama-server -m x -ot '(exps=CPU'": "not a regular expression",
    "llama-server -m x --device CUDA0 -ot exps=CUDA1": "add it to --device",
    "llama-server -m x -nkvo": "--no-kv-offload",
    "CUDA_VISIBLE_DEVICES=5 llama-server -m x": "names GPU 5",
    "llama-server -m 'x": "quotes",
    "ollama run qwen3": "does not read command lines of 'ollama'",
    "vllm serve m -tp 2": "whole tensors",
    "vllm serve m -pp 3": "needs 3 GPUs, but there are 2",
    "VLLM_PP_LAYER_PARTITION=1,2 vllm serve m -pp 2": "the model has 48 layers",
    "VLLM_PP_LAYER_PARTITION=24,24 vllm serve m": "2 stages of 48 layers; there are 1",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_line_gets_one_clear_error(text: str) -> None:
    with pytest.raises(PlacekitError, match=WRONG[text]) as e:
        split(text, search(runtime="vllm" if "vllm" in text else "llamacpp"))
    assert e.value.hint


def test_wrong_models_and_types() -> None:
    for text in ("llama-server -ngl 99", "vllm serve", "llama-server -m some.gguf"):
        with pytest.raises(PlacekitError, match=r"names no model|does not end in a known format"):
            read(text).model()
    with pytest.raises(PlacekitError, match="-ctk q3_9"):
        read("llama-server -m x -ctk q3_9").options()


def test_machines_without_a_cpu() -> None:
    own = search(machine="2x rtx4090")
    with pytest.raises(PlacekitError, match="39 of 49 layers are for the CPU"):
        split("llama-server -m x -ngl 10", own)
    with pytest.raises(PlacekitError, match="--cpu-moe needs the CPU"):
        split("llama-server -m x -cmoe", own)


def test_what_is_a_line() -> None:
    assert all(
        map(is_line, ["llama-server -m x", "./llama-cli", "VLLM_PP_LAYER_PARTITION=1,2 vllm serve x", "ollama run x"])
    )
    assert not any(map(is_line, ["half.json", "my maps/half map.json", "", "placement.json"]))


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = "llama-server -m Llama-3.2-3B-Q8_0.gguf -ngl 10 -c 2048"
    assert main([text, "rtx4090 + 64GB ddr5-5600", "prompt=200", "generate=100"], installed()) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "yours" in out
    assert "times as fast as yours" in out
    assert "llama-server -m Llama-3.2-3B-Q8_0.gguf" in out


def test_the_recommended_line_keeps_what_the_user_wrote(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    own = "--host 0.0.0.0 --port=80 -t 8 --mlock --jinja --wonder 3 -b 4096"
    page = tmp_path / "plan.html"
    for model in ("-hf user/Llama-3.2-3B-GGUF:Q8_0", "-m /x/Llama-3.2-3B-Q8_0-00001-of-00002.gguf"):
        words = [f"llama-server {model} -ngl 10 -c 2048 {own}", "machine=rtx4090 + 64GB ddr5-5600", "--html", str(page)]
        assert main(words, installed()) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "yours: layers 0-18 in host memory, 19-27 on rtx4090:0 " in out
        assert f"llama-server {model} -c 2048 -np 1 --n-gpu-layers 29 -fa on {own.replace('=', ' ')} written to" in out
    assert page.read_text().startswith("<!doctype html>")


def test_other_commands_keep_only_the_model() -> None:
    assert read("llama-cli -m x.gguf -p hello").kept == []
    line = read("llama-server -hf user/x -hff y.gguf -ngl 3")
    assert (line.named_by(), line.kept) == (["-hf", "user/x", "-hff", "y.gguf"], [])


def test_a_command_line_without_quotes() -> None:
    for words in (["llama-server", "-m", "x.gguf", "rtx4090"], ["vllm", "serve", "m"]):
        with pytest.raises(PlacekitError, match="put the command line in quotes"):
            main(words, installed())


def test_a_line_that_is_as_good() -> None:
    line = read("llama-server -m Llama-3.2-3B-Q8_0.gguf -ngl 99 -c 2048")
    found = evaluate_line.evaluate(line, "rtx4090", installed(), {})
    assert evaluate_line.compared(found, found.rows[0]).startswith("yours is as good")
    assert [row.best for row in found.rows] == [False, True]


def test_a_line_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    text = "llama-server -m Llama-3.2-3B-F16.gguf -ngl 99 -c 65536"
    with pytest.raises(PlacekitError, match=r"rtx3060:0 lacks .* GiB"):
        main([text, "rtx3060 + 64GB ddr5-5600", "runtime=llamacpp"], installed())
    assert "llama.cpp:" in capsys.readouterr().out


def test_vllm_takes_its_share_of_the_memory() -> None:
    own = search(DENSE, "rtx4090", "vllm")
    assert evaluate_line._row(read("vllm serve m"), own).works
    row = evaluate_line._row(read("vllm serve m --gpu-memory-utilization 0.1"), own)
    assert row.error.startswith("does not fit, ")
    assert row.memory is not None
    assert row.memory.free[0] == pytest.approx(
        0.1 * own.question.cluster.kinds["rtx4090"].memory_bytes - row.memory.used[0]
    )
