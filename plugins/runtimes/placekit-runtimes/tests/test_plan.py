"""`placekit plan`: splits, the search, the lines to paste, and errors. Models are small, and so are the devices."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from placekit_runtimes import evaluate_line, plan
from placekit_runtimes.llamacpp import arguments, gpu_of_layers
from placekit_runtimes.planning.plan import Plan
from placekit_runtimes.planning.question import PlanOptions
from placekit_runtimes.planning.read_lines import read
from placekit_runtimes.planning.regular import SHIFTS, SIMPLER, Regular, Regulars, Space
from placekit_runtimes.planning.split import Split
from placekit_runtimes.planning.words import described

from placekit_core import ConfigError, ImporterError, PlacekitError, PlacementError, installed

Run = Callable[..., Any]

DENSE: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
    "head_dim": 64, "intermediate_size": 4096, "vocab_size": 8192, "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS = DENSE | {
    "model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 1024,
}  # fmt: skip
# of 1.5 GB, 0.6 are usable: drivers and runtimes have the rest
FAST = "fast(1.5GB 900GB/s 80TFLOPS)"
SLOW = "slow(1.5GB 300GB/s 20TFLOPS)"
HOST = "64GB ddr5-5600"
USE: dict[str, Any] = {"context": 2048, "prompt": 600, "generate": 200}


@pytest.fixture
def model(tmp_path: Path) -> Any:
    """Writes a folder with a configuration."""

    def write(config: dict[str, Any], **more: Any) -> str:
        folder = tmp_path / config["model_type"]
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config | more))
        return str(folder)

    return write


def split_of(found: Plan) -> Split:
    split = found.best.split
    assert split is not None
    return split


class TestThePlan:
    def test_a_model_that_fits_the_fast_gpu_is_there_alone(self, model: Any) -> None:
        found = plan(model(DENSE), f"{SLOW} + {FAST}", weights="q4_k_m", **USE)
        assert found.verdict == "everything on fast:0"
        assert "--device CUDA1" in found.llama_cpp()

    def test_a_model_that_fits_no_gpu_uses_both(self, model: Any) -> None:
        found = plan(model(DENSE, num_hidden_layers=90), f"{FAST} + {SLOW}", weights="q4_k_m", **USE)
        assert re.fullmatch(r"layers 0-\d+ on (fast|slow):0, \d+-89 on (fast|slow):0", found.verdict)
        fast = np.count_nonzero(split_of(found).home == 0)
        assert fast > 45, "the fast GPU has more layers"

    def test_experts_go_to_host_memory_before_layers_do(self, model: Any) -> None:
        large = {"hidden_size": 2048, "num_attention_heads": 32, "moe_intermediate_size": 2048, "num_experts": 32}
        found = plan(model(EXPERTS, num_hidden_layers=12, **large), f"{FAST} + {HOST}", weights="q8_0", **USE)
        assert re.fullmatch(r"everything on fast:0; (all|the) experts( of layers 0-\d+)? in host memory", found.verdict)
        assert re.search(r"--n-cpu-moe \d+", found.llama_cpp())

    @pytest.mark.parametrize("weights", ["q4_k_m", "bf16", "fp8"])
    def test_nothing_that_people_would_try_is_much_better(self, model: Any, weights: str) -> None:
        for config in (DENSE, EXPERTS):
            layers = 10 if weights == "bf16" else 20
            found = plan(model(config, num_hidden_layers=layers), f"{FAST} + {SLOW} + {HOST}", weights=weights, **USE)
            for row in found.rows:
                if row.works and row.runtime == "llamacpp":
                    best = found.answer_s(found.best_of(row.runtime))
                    assert best <= found.answer_s(row) * (1 + SIMPLER), row.name

    def test_seconds_add_up(self, model: Any) -> None:
        found = plan(model(DENSE), FAST, weights="q4_k_m", users=3, **USE)
        row = found.best
        assert found.answer_s(row) == pytest.approx(3 * row.prompt_s + 200 * row.decode_s)
        assert found.decode_bound_s is not None
        assert row.decode_s >= found.decode_bound_s > 0.3 * row.decode_s

    def test_memory_adds_up(self, model: Any) -> None:
        """All weights and the cache of the full context are somewhere, once."""
        found = plan(model(EXPERTS), f"{FAST} + {SLOW} + {HOST}", weights="q8_0", users=2, **USE)
        for row in found.rows:
            assert row.memory is not None
            assert row.memory.weights.sum() == pytest.approx(found.question.checkpoint.bytes)
            assert row.memory.cache.sum() >= 2 * 2048 * 8 * 2 * 4 * 64 * 2
            assert np.allclose(row.memory.free, found.question.cluster.memory_bytes - row.memory.used)

    def test_more_context_needs_more_memory(self, model: Any) -> None:
        less, more = (
            plan(model(DENSE), FAST, weights="q4_k_m", **USE | {"context": n}).best.memory for n in (2048, 4096)
        )
        assert less is not None
        assert more is not None
        assert more.cache.sum() == pytest.approx(2 * less.cache.sum(), rel=0.02)
        assert more.weights.sum() == less.weights.sum()

    def test_a_tied_output_is_copied_only_to_another_device(self, model: Any) -> None:
        tied = model(DENSE, tie_word_embeddings=True)
        matrix = 1024 * 8192 * 2
        alone = plan(tied, FAST, weights="bf16", runtime="vllm", **USE)
        assert alone.best.memory is not None
        assert alone.best.memory.weights.sum() == pytest.approx(alone.question.checkpoint.bytes)
        beside = plan(tied, f"{FAST} + {HOST}", weights="bf16", runtime="llamacpp", **USE)
        assert beside.best.memory is not None
        assert beside.best.memory.weights.sum() == pytest.approx(beside.question.checkpoint.bytes + matrix)

    @pytest.mark.slow
    def test_the_same_plan_twice(self, model: Any) -> None:
        first, again = (
            plan(model(EXPERTS, num_hidden_layers=30), f"{FAST} + {SLOW} + {HOST}", weights="q8_0", **USE)
            for _ in range(2)
        )
        assert split_of(first).key == split_of(again).key
        assert first.answer_s(first.best) == again.answer_s(again.best)


class TestTheSearch:
    """Against all regular splits of small models."""

    @pytest.mark.parametrize("memory", [0.35, 0.6, 0.9])
    def test_layers_on_two_gpus_and_the_cpu(self, model: Any, memory: float) -> None:
        memory += 0.9
        machine = f"fast({memory}GB 900GB/s 80TFLOPS) + slow({memory}GB 300GB/s 20TFLOPS) + {HOST}"
        found = plan(model(DENSE, num_hidden_layers=12), machine, weights="bf16", runtime="llamacpp", **USE)
        regulars = found.strategies["llamacpp"].regulars
        every = [
            regulars.split(Regular.plain(chain, counts, 0))
            for chain in itertools.permutations(range(3))
            if chain[0] == 2
            for counts in itertools.product(range(13), repeat=3)
            if sum(counts) == 12
        ]
        assert found.answer_s(found.best) <= _best_of(found, every) * (1 + SIMPLER)

    @pytest.mark.parametrize("memory", [0.2, 0.5])
    def test_experts_of_one_gpu(self, model: Any, memory: float) -> None:
        memory += 0.9
        machine = f"fast({memory}GB 900GB/s 80TFLOPS) + {HOST}"
        found = plan(model(EXPERTS, num_hidden_layers=12), machine, weights="q4_k_m", runtime="llamacpp", **USE)
        regulars = found.strategies["llamacpp"].regulars
        every = [
            regulars.split(Regular((1, 0), (n, 12 - n), ((0, 0), (away, 0)), (0, 0)))
            for n in range(13)
            for away in range(13 - n)
        ]
        assert found.answer_s(found.best) <= _best_of(found, every) * (1 + SIMPLER)

    def test_moves_keep_every_layer(self, model: Any) -> None:
        found = plan(model(EXPERTS), f"{FAST} + {SLOW} + {HOST}", weights="q8_0", **USE)
        for space in (Space(on_cpu=True, experts=True, embedding_on_cpu=True), Space(streams=True), Space()):
            regulars = Regulars(found.strategies["llamacpp"].steps, space)
            for chain in regulars.chains():
                for start in regulars.starts(chain):
                    for near in (near for k in SHIFTS for near in regulars.moves(start, k)):
                        assert sum(near.counts) == 8
                        assert min(near.counts) >= 0
                        assert all(0 <= sum(row) <= n for row, n in zip(near.away, near.counts, strict=True))
                        assert all(0 <= s <= n for s, n in zip(near.streamed, near.counts, strict=True))


def _best_of(found: Plan, splits: list[Split]) -> float:
    strategies = found.strategies["llamacpp"]
    fit = [s for s in splits if not strategies.steps.memory(s).lacking]
    decode_s, prompt_s = strategies.steps.seconds(fit)
    return float(found.question.answer_s(decode_s, prompt_s).min())


class TestLines:
    def test_llama_server(self, model: Any) -> None:
        found = plan(model(DENSE), f"{FAST} + {SLOW}", weights="q4_k_m", users=2, cache="q8_0", ubatch=256, **USE)
        assert found.llama_cpp() == (
            "llama-server -m llama-Q4_K_M.gguf -c 4096 -np 2 --device CUDA0 --n-gpu-layers 9 -fa on -ctk q8_0 -ctv q8_0 -ub 256"
        )

    def test_another_box(self, model: Any) -> None:
        found = plan(model(DENSE, num_hidden_layers=90), f"({FAST}) + ({SLOW}), 1gbe", weights="q4_k_m", **USE)
        server, client = found.llama_cpp().splitlines()
        assert re.fullmatch(
            r"rpc-server --host 0.0.0.0 --port 50052 --device CUDA0 # in the box of (fast|slow):0", server
        )
        assert "--device CUDA0,RPC0 " in client
        assert "--rpc BOX:50052" in client

    def test_vllm(self, model: Any) -> None:
        found = plan(model(DENSE, num_hidden_layers=50), f"{FAST} + {SLOW}", weights="fp8", ubatch=512, **USE)
        line = found.vllm()
        counts = re.search(r"VLLM_PP_LAYER_PARTITION=(\d+),(\d+) vllm serve \S+ --max-model-len 2048 ", line)
        assert counts is not None
        assert int(counts[1]) + int(counts[2]) == 50
        assert "--pipeline-parallel-size 2 --max-num-batched-tokens 512" in line

    def test_vllm_with_weights_in_host_memory(self, model: Any) -> None:
        found = plan(model(DENSE, num_hidden_layers=60), f"{FAST} + {HOST}", weights="fp8", runtime="vllm", **USE)
        assert split_of(found).streams
        assert re.search(r"--cpu-offload-gb 0\.\d+", found.vllm())
        assert "in host memory, copied in every step" in found.verdict

    def test_accelerate(self, model: Any) -> None:
        found = plan(model(DENSE, num_hidden_layers=50), f"{FAST} + {SLOW}", weights="fp8", runtime="accelerate", **USE)
        devices = found.device_map()
        assert {f"model.layers.{i}" for i in range(50)} <= {*devices}
        text = found._lines("accelerate").splitlines()[0].removeprefix("device_map = ")
        assert eval(text) == devices, "the short form is the same map"

    def test_exo(self, model: Any) -> None:
        found = plan(model(DENSE, num_hidden_layers=12), f"{FAST} + {SLOW}", weights="bf16", runtime="exo", **USE)
        shards = [entry["PipelineShardMetadata"] for entry in json.loads(found.exo())]
        assert shards[-1]["endLayer"] == 12

    def test_experts_of_the_first_layers_and_others(self, model: Any) -> None:
        """Experts of the first layers in host memory have a short argument; other tensors take patterns."""
        found = plan(model(EXPERTS), f"{FAST} + {SLOW} + {HOST}", weights="q8_0", **USE)
        steps = found.strategies["llamacpp"].steps
        layout, problem = steps.layout, steps.decode.problem

        def words(experts: list[int], **moved: int) -> list[str]:
            split = layout.split([0] * 9, 2, experts)
            for name, device in moved.items():
                split.held[layout.index[name.replace("__", ".")]] = device
            return arguments(problem, layout, split)

        assert words([2] * 3 + [0] * 5)[-2:] == ["--n-cpu-moe", "3"]
        assert words([0] * 3 + [2] * 5)[-2:] == ["--override-tensor", r"blk\.(3|4|5|6|7)\.ffn_.*_exps\.=CPU"]
        assert words([2, 1] + [0] * 6)[-1] == r"blk\.(0)\.ffn_.*_exps\.=CPU,blk\.(1)\.ffn_.*_exps\.=CUDA1"
        assert words([0] * 8, blk__2__attn_q=2)[-1] == r"blk\.(2)\.attn_q\.=CPU"

    def test_layers_in_another_order_are_refused(self, model: Any) -> None:
        found = plan(model(EXPERTS), f"{FAST} + {SLOW} + {HOST}", weights="q8_0", **USE)
        steps = found.strategies["llamacpp"].steps
        with pytest.raises(PlacementError, match=r"'blk\.2' on fast:0 again"):
            arguments(steps.decode.problem, steps.layout, steps.layout.split([0, 1, 0, *[0] * 6], 2))

    def test_counts_are_those_that_llamacpp_gives_each_gpu(self, model: Any) -> None:
        """`--tensor-split` with numbers of layers gives each GPU these layers, in llama.cpp's single precision."""
        for first in range(1, 60):
            on = gpu_of_layers(60, [first, 61 - first], 61)
            assert on == [0] * first + [1] * (61 - first)


class TestWords:
    def test_described(self, model: Any) -> None:
        found = plan(model(EXPERTS), f"{FAST} + {SLOW} + {HOST}", weights="q8_0", **USE)
        steps, cluster = found.strategies["llamacpp"].steps, found.question.cluster
        split = steps.layout.split([2, 0, 0, 0, 1, 1, 1, 1, 1], 2, [2, 2, 0, 0, 1, 1, 0, 2])
        assert described(cluster, steps.layout, split) == (
            "layers 0 in host memory, 1-3 on fast:0, 4-7 on slow:0; the experts of layers 1, 7 in host memory; the experts of"
            " layers 6 on fast:0"
        )


class TestErrors:
    def test_nothing_fits(self, model: Any) -> None:
        found = plan(model(DENSE, num_hidden_layers=60), FAST, weights="bf16", **USE)
        with pytest.raises(PlacementError, match=r"are missing.*\n.*add the host's memory.*, or use weights=q\d"):
            _ = found.best

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"context": 700}, "prompt=600 and generate=200 are more than context=700"),
            ({"weights": "q9"}, "weights='q9' is not a known format"),
            ({"runtime": "vllm", "weights": "q4_k_m"}, "vLLM does not run weights in q4_k_m"),
            ({"runtime": "ollama"}, "runtime"),
            ({"runtime": "llama.cpp", "weights": "fp8"}, "llama.cpp does not run weights in fp8"),
            ({"cache": "q8"}, "cache: did you mean q8_0?"),
            ({"quant": "q8_0"}, "no option named 'quant'\n  did you mean weights=?"),
            ({"context": "32x"}, "context"),
            ({"usres": 2}, "usres"),
            ({"users": 0}, "users"),
        ],
    )
    def test_options(self, model: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises((ConfigError, ImporterError), match=re.escape(message)):
            plan(model(DENSE), FAST, **USE | options)

    def test_counts_and_runtimes_as_people_write_them(self, model: Any) -> None:
        found = plan(
            model(DENSE), FAST, weights="Q8_0", context="32k", prompt="2,000", generate="1K", runtime="llama.cpp"
        )
        o = found.question.options
        assert (o.context, o.prompt, o.generate) == (32768, 2000, 1024)
        assert [
            PlanOptions.model_validate({"runtime": name}).runtime for name in ("vLLM", "llama.cpp", "llama-cpp")
        ] == [
            "vllm",
            "llamacpp",
            "llamacpp",
        ]

    def test_what_python_prints(self, model: Any) -> None:
        found = plan(model(DENSE), FAST, weights="q4_k_m", **USE)
        assert repr(found) == f"<Plan llama q4_k_m on {found.question.cluster.name}: everything on fast:0>"
        assert re.fullmatch(
            r"<Row llama.cpp, recommended: [\d.e-]+ s per token, [\d.e-]+ s per prompt>", repr(found.best)
        )
        none = plan(model(DENSE, num_hidden_layers=60), FAST, weights="bf16", **USE)
        assert repr(none).endswith(": nothing fits>")
        with pytest.raises(PlacementError, match=r"does not fit on .* with llama.cpp: .* are missing"):
            none.llama_cpp()

    def test_machines(self, model: Any) -> None:
        with pytest.raises(PlacekitError, match="no device kind named 'rtx4091'"):
            plan(model(DENSE), "rtx4091 + rtx3060", **USE)

    def test_a_runtime_that_was_not_planned_for(self, model: Any) -> None:
        found = plan(model(DENSE), FAST, weights="q4_k_m", **USE)
        with pytest.raises(PlacementError, match=r"there is no plan for vLLM\n.*llama.cpp"):
            found.vllm()


class TestTheCommand:
    OPTIONS = tuple(f"{key}={value}" for key, value in USE.items())

    def test_it_prints_the_plan(self, model: Any, placekit: Run) -> None:
        done = placekit("plan", model(EXPERTS), f"{FAST} + {HOST}", "weights=q4_k_m", *self.OPTIONS)
        assert done.code == 0
        assert "recommended: everything on fast:0" in done.out
        assert "llama-server -m qwen3_moe-Q4_K_M.gguf -c 2048" in done.out
        assert re.search(r"no split of whole layers", done.out)

    def test_more_words_for_the_machine(self, model: Any, placekit: Run) -> None:
        words = ["--if", "+ rtx3060", "--if", "pcie3 x8", "--html", "plan.html"]
        done = placekit("plan", model(DENSE), "rtx4090", "weights=q4_k_m", "runtime=llamacpp", *words, *self.OPTIONS)
        assert done.code == 0
        before, table = done.out.split("\nif ")
        assert "written to plan.html" in before, "an error in a change loses no page"
        assert table.count("everything on rtx4090:0") == 2
        assert table.count("nothing changes") == 2
        refused = placekit("plan", model(DENSE), "p100x4", "weights=q4_k_m", "--if", "nvlink", *self.OPTIONS)
        assert "describe the machine" in refused.err
        done = placekit(
            "plan", model(DENSE, num_hidden_layers=60), FAST, "weights=q8_0", "--if", f"+ {HOST}", *self.OPTIONS
        )
        assert done.code == 1
        assert "it fits" in done.out

    def test_it_says_what_is_missing(self, model: Any, placekit: Run) -> None:
        done = placekit("plan", model(DENSE, num_hidden_layers=60), FAST, "weights=q8_0", *self.OPTIONS)
        assert done.code == 1
        assert "alone: does" in done.out
        assert "does not fit" in done.err

    def test_help_begins_with_an_example(self, placekit: Run) -> None:
        done = placekit("plan", "--help")
        assert "example:\n  placekit plan Qwen3-14B" in done.out
        assert re.search(r"context .*\(default 8,192\)", done.out)
        assert "TinyLlama-1.1B" in done.out
        assert "for example placekit plan" in placekit("plan").err
        assert "COMMAND [MACHINE]" in placekit("evaluate", "--help").out

    def test_the_model_and_the_machine_as_options(self, model: Any, placekit: Run, tmp_path: Path) -> None:
        page = tmp_path / "plan.html"
        words = [f"model={model(DENSE)}", f"machine={FAST}", "weights=q4_k_m", "runtime=llamacpp", "--html", str(page)]
        done = placekit("plan", *words, *self.OPTIONS)
        assert done.code == 0
        assert f"written to {page}" in done.out
        assert page.is_file()
        assert "recommended" in placekit("plan", words[0], f"cluster={FAST}", *words[2:4], *self.OPTIONS).out

    def test_this_computer(self, model: Any, placekit: Run) -> None:
        done = placekit("plan", model(DENSE), "weights=q4_k_m", *self.OPTIONS)
        assert done.out.startswith("on this computer: ")

    @pytest.mark.parametrize(
        ("word", "hint"),
        [
            (("--ctx", "32768"), "write context=32768"),
            (("--weights=q8_0",), "write weights=q8_0"),
            (("html=x.html",), "write --html x.html"),
            (("if=nvlink",), "write --if nvlink"),
        ],
    )
    def test_flags_and_options(self, word: tuple[str, ...], hint: str, placekit: Run) -> None:
        done = placekit("plan", "Qwen3-14B", FAST, *word)
        assert done.code == 1
        assert hint in done.err

    def test_a_file_that_is_elsewhere(self) -> None:
        with pytest.warns(
            UserWarning, match="is not on this computer: Llama-3.2-1B with weights=q8_0 is planned instead"
        ):
            found = plan("/x/Llama-3.2-1B-Q8_0.gguf", "rtx4090")
        assert found.llama_cpp().startswith("llama-server -m /x/Llama-3.2-1B-Q8_0.gguf -c")

    def test_a_machine_without_quotes(self, model: Any, placekit: Run) -> None:
        done = placekit("plan", model(DENSE), "rtx4090", "+", "rtx3060")
        assert done.code == 1
        assert "put the machine in quotes" in done.err


def test_apply_writes_experts_apart(model: Any, tmp_path: Path, placekit: Run) -> None:
    """Experts that policy `given` puts on the CPU can be pasted into llama.cpp."""
    assert placekit("cluster", "new", f"{FAST} + {HOST}", "box.yaml").code == 0
    folder = model(EXPERTS)
    experts = {f"model.layers.{i}.mlp.experts": "cpu" for i in range(3)}
    (tmp_path / "map.json").write_text(json.dumps({"": 0} | experts))
    options = [f"checkpoint={folder}", "weights=q8_0", "context=2048", "cluster=box.yaml", "policy=given"]
    assert placekit("run", *options, "policy.path=map.json", "run_dir=run").code == 0
    done = placekit("apply", "run", "--format", "llamacpp")
    assert done.out.strip() == "--n-gpu-layers 9 --n-cpu-moe 3"


class TestImages:
    """With a tower that makes 16 tokens of an image."""

    @pytest.fixture
    def mmproj(self, tmp_path: Path) -> str:
        writer = GGUFWriter(tmp_path / "mmproj-it.gguf", "clip")
        about = {"embedding_length": 1024, "patch_size": 14, "image_size": 224, "projection_dim": 1024}
        for key, value in about.items():
            writer.add_uint32(f"clip.vision.{key}", value)
        writer.add_string("clip.projector_type", "gemma3")
        sizes = {"v.patch_embd": (14, 14, 3, 1024), "mm.input_projection": (1024, 1024)}
        for i in range(8):
            own = {"attn_q": 1024, "attn_k": 1024, "attn_v": 1024, "attn_out": 1024, "ffn_up": 4096, "ffn_down": 4096}
            sizes |= {f"v.blk.{i}.{key}": (1024, n) for key, n in own.items()}
        for name, size in sizes.items():
            count = int(np.prod(size))
            writer.add_tensor_info(f"{name}.weight", size[::-1], np.dtype(np.float16), 2 * count)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        return str(tmp_path / "mmproj-it.gguf")

    def test_the_tower_is_on_the_first_gpu_that_is_used(self, model: Any, mmproj: str) -> None:
        machine, config = f"{SLOW} + {FAST} + {HOST}", model(DENSE)
        text = plan(config, machine, weights="q4_k_m", runtime="llamacpp", **USE)
        found = plan(config, machine, weights="q4_k_m", images=4, mmproj=mmproj, **USE)
        tower = found.question.checkpoint.tower
        assert tower is not None
        assert tower.tokens == 16
        assert {row.runtime for row in found.rows} == {"llamacpp"}
        assert found.best.memory is not None
        assert text.best.memory is not None
        more = found.best.memory.used - text.best.memory.used
        assert more.tolist() == [0, tower.bytes + tower.buffer, 0]
        assert found.best.prompt_s > text.best.prompt_s
        assert found.best.decode_s == text.best.decode_s
        line = found.llama_cpp()
        assert line.startswith("MTMD_BACKEND_DEVICE=CUDA1 llama-server ")
        assert f"--mmproj {mmproj}" in line
        again = evaluate_line.evaluate(read(line), machine, installed(), {"model": config, "weights": "q4_k_m", **USE})
        assert again.rows[0].memory is not None
        assert again.rows[0].memory.used.tolist() == found.best.memory.used.tolist()

    def test_images_without_a_tower_are_an_error(self, model: Any) -> None:
        with pytest.raises(ImporterError, match="has no tower that reads them"):
            plan(model(DENSE), FAST, images=1, **USE)


class TestDrafts:
    def test_drafted_tokens_are_checked_together(self, model: Any) -> None:
        large, small = model(DENSE), model(DENSE | {"model_type": "mistral"}, num_hidden_layers=1)
        machine = f"{SLOW} + {FAST} + {HOST}"
        options: dict[str, Any] = {"weights": "q4_k_m", "runtime": "llamacpp", **USE}
        alone, little = plan(large, machine, **options), plan(small, machine, **options)
        found = plan(large, machine, draft=small, draft_weights="q4_k_m", draft_tokens=3, accepted=0.5, **options)
        check_s = found.strategies["llamacpp"].steps.check.seconds([split_of(found)])[0]
        assert alone.best.decode_s < check_s < 2 * alone.best.decode_s
        assert found.best.decode_s == pytest.approx((3 * little.best.decode_s + check_s) / (1 + 0.5 + 0.25 + 0.125))
        assert found.best.prompt_s == pytest.approx(alone.best.prompt_s + little.best.prompt_s)
        assert found.decode_bound_s is None
        used = [x.best.memory.used for x in (alone, little, found) if x.best.memory is not None]
        assert found.best.memory is not None
        assert found.best.memory.draft == 1, "the fast GPU has room"
        assert np.allclose(used[0] + used[1], used[2])
        assert "-md mistral-Q4_K_M.gguf --spec-type draft-simple --spec-draft-n-max 3 -devd CUDA1" in found.llama_cpp()

    def test_a_draft_model_has_the_words_of_the_model(self, model: Any) -> None:
        other = model(DENSE | {"model_type": "mistral"}, vocab_size=4096)
        with pytest.raises(
            ConfigError, match=r"mistral cannot draft for llama .*: it has 4,096 words, and the model 8,192"
        ):
            plan(model(DENSE), FAST, draft=other, weights="q4_k_m", **USE)
