"""llama.cpp itself: its parser of command lines, its loader, what it allocates, and its speed on this computer's CPU.

The wheel of xllamacpp has the whole library; its Python module offers a server and the parameters. This module calls further
functions by ctypes: for these, the version of the wheel matters (constraints.txt). GPUs are simulated: they are devices of
llama.cpp's whose memory is the host's and whose operations the CPU computes, so that llama.cpp places tensors, splits its graph
and reserves memory as it does with real ones. Each call has a process of its own, because llama.cpp ends the process if something
is wrong.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_bool,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint64,
    c_void_p,
)
from dataclasses import dataclass, field
from typing import Any

SERVER = 12
"""`LLAMA_EXAMPLE_SERVER`: the options of llama-server."""
HEADER = 16
"""Bytes of a Python object before the `common_params` in it."""
ALIGNMENT = 128
"""Addresses on CUDA devices are multiples of it."""
OFFLOADED = 32
"""Tokens from which a GPU computes with weights in host memory (`ggml_backend_cuda_device_offload_op`)."""
FIELDS = (
    "n_gpu_layers", "n_ctx", "n_parallel", "n_batch", "n_ubatch", "kv_unified", "main_gpu", "swa_full", "no_kv_offload",
    "no_op_offload", "fit_params",
)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """What llama.cpp makes of a command line.

    Attributes:
        parsed: the values that its parser finds: `FIELDS`, and `tensor_split`, `overrides` (patterns and names of buffers, with
            those of `--n-cpu-moe`), `cache_type_k`, `cache_type_v`, `flash_attn`, `split_mode`. Empty: it refuses the line.
        memory: bytes of weights, of caches, and for values, by the name of the buffer's type: `CUDA0`, `CPU`, `CPU_Mapped`.
        tensors: name of the buffer's type by the name of the tensor.
        prompt_s, token_s: seconds of each repeated prompt, and of each generated token: of processors, so that other programs on
            them matter little. With several threads, it is the sum of theirs.
        log: what it prints.
    """

    parsed: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, list[int]] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    prompt_s: list[float] = field(default_factory=list)
    token_s: list[float] = field(default_factory=list)
    log: str = ""


def parse_llama_server(args: Sequence[str], gpus: Sequence[str] = ()) -> dict[str, Any]:
    """The values that llama-server's own parser finds in its arguments; see `Loaded.parsed`. Raises ValueError."""
    parsed = load(args, gpus, only_parse=True).parsed
    if not parsed:
        raise ValueError(f"llama-server does not take {' '.join(args)}")
    return parsed


def load(args: Sequence[str], gpus: Sequence[str] = (), **options: Any) -> Loaded:
    """What llama-server loads with these arguments on a computer with these GPUs.

    Args:
        gpus: their names, as in `--device CUDA0,CUDA1`.
        options: `only_parse`; `hollow`: weights on GPUs are not read; `pipeline` (True): GPUs can work on several micro-batches
            at once, as CUDA devices; `speed`: tokens of a prompt, tokens to generate, repetitions; `free`: bytes of free memory
            of each GPU, to which llama.cpp fits the model by itself (`--fit`).
    """
    request = json.dumps({"args": [*args], "gpus": [*gpus], **options})
    done = subprocess.run([sys.executable, __file__, request], capture_output=True, text=True, check=False)
    found = re.search(r"^@@(.*)$", done.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"llama.cpp ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return Loaded(**json.loads(found[1]))


def tower_bytes(path: str) -> int:
    """Bytes that llama.cpp takes on a GPU for the tower in this file: its weights, and its values for the first image."""
    return load([], ["CUDA0"], tower=path).memory["CUDA0"][0]


class _Params(ctypes.Structure):
    """Any structure that is passed by value: as large as the largest. Functions read only its beginning."""

    _fields_ = (("data", c_uint8 * 512),)


class _Batch(ctypes.Structure):
    _fields_ = (("n_tokens", c_int32), ("arrays", c_void_p * 6))


def _words(address: int, count: int = 20) -> Any:
    """Pointers and numbers of eight bytes at an address."""
    return (c_uint64 * count).from_address(address)


class _Library:
    """The library, with the functions that this module calls."""

    def __init__(self) -> None:
        import xllamacpp

        self.x = xllamacpp
        self.lib = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
        self.kept: list[Any] = []  # what C points to
        self.log: list[str] = []
        self.lib.llama_log_set(self.function(None, c_int, c_char_p, c_void_p)(self._log), None)

    def _log(self, _level: int, text: bytes, _data: object) -> None:
        self.log.append(text.decode(errors="replace"))

    def call(self, name: str, result: Any, *args: Any) -> Any:
        """Call a function; numbers are pointers."""
        f = getattr(self.lib, name)
        f.restype, f.argtypes = result, None
        return f(*(c_void_p(a) if type(a) is int else a for a in args))

    def name_of(self, buffer_type: int) -> str:
        return str(self.call("ggml_backend_buft_name", c_char_p, buffer_type).decode())

    def function(self, result: Any, *args: Any) -> Callable[[Callable[..., Any]], Any]:
        """Makes a function for C of one in Python."""

        def keep(f: Callable[..., Any]) -> Any:
            self.kept.append(CFUNCTYPE(result, *args)(f))
            return self.kept[-1]

        return keep

    def text(self, value: str) -> int:
        """The address of a text."""
        self.kept.append(ctypes.create_string_buffer(value.encode()))
        return ctypes.addressof(self.kept[-1])


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0


def _simulate(lib: _Library, names: Sequence[str], free: Sequence[int], *, hollow: bool, pipeline: bool) -> None:
    """Register a backend with these GPUs. The places of functions are those of ggml/src/ggml-backend-impl.h."""
    registry = lib.call("ggml_backend_cpu_reg", c_void_p)
    cpu = lib.call("ggml_backend_reg_dev_get", c_void_p, registry, c_size_t(0))
    backend = (c_uint64 * 8)(c_uint64.from_address(registry).value)
    own = ctypes.addressof(backend)
    devices = [_device(lib, name, cpu, own, n, hollow, pipeline) for name, n in zip(names, free, strict=True)]
    label = lib.text("CUDA")
    backend[1:5] = [
        _address(lib.function(c_void_p, c_void_p)(lambda _: label)),
        _address(lib.function(c_size_t, c_void_p)(lambda _: len(devices))),
        _address(lib.function(c_void_p, c_void_p, c_size_t)(lambda _, i: devices[i])),
        _address(lib.function(c_void_p, c_void_p, c_char_p)(lambda _, name: None)),
    ]
    lib.kept.append(backend)
    lib.call("ggml_backend_register", None, ctypes.addressof(backend))


def _device(lib: _Library, name: str, cpu: int, backend: int, memory: int, hollow: bool, pipeline: bool) -> int:
    """A device (`ggml_backend_device_i`) with the type of its buffers and this much memory; returns its address."""
    device, label = (c_uint64 * 20)(), lib.text(name)
    lib.kept.append(device)
    address = ctypes.addressof(device)
    get_name = lib.function(c_void_p, c_void_p)(lambda _: label)
    buffers = _buffer_type(lib, get_name, address, hollow)
    cpu_properties = CFUNCTYPE(None, c_void_p, c_void_p)(_words(cpu)[4])

    def free_memory(_: int, free: Any, total: Any) -> None:
        free[0] = total[0] = memory

    def properties(_: int, out: int) -> None:
        cpu_properties(cpu, out)
        found = _words(out, 6)
        found[0] = found[1] = label
        found[2] = found[3] = memory
        found[5] = 0
        c_int.from_address(out + 32).value = 1  # a GPU
        (c_uint8 * 4).from_address(out + 48)[:] = [pipeline, 0, 0, pipeline]

    def start(_: int, _params: object) -> int:
        made = lib.call("ggml_backend_dev_init", c_void_p, cpu, None)
        _words(made)[17], _words(made)[1] = address, _address(get_name)
        return int(made)

    def offloads(_: int, op: int) -> bool:
        sizes = (c_int64 * 4).from_address(op + 16)
        kind = lib.call("ggml_op_name", c_char_p, c_int(c_int.from_address(op + 80).value)).decode()
        rows = {"MUL_MAT": sizes[1], "MUL_MAT_ID": sizes[2], "ROPE": sizes[2], "GET_ROWS": 0}
        return rows.get(kind, sizes[1] * sizes[2] * sizes[3]) >= OFFLOADED

    f, two = lib.function, (c_void_p, c_void_p)
    functions = {
        0: get_name, 1: get_name, 2: f(None, c_void_p, POINTER(c_size_t), POINTER(c_size_t))(free_memory),
        3: f(c_int, c_void_p)(lambda _: 1), 4: f(None, *two)(properties), 5: f(c_void_p, *two)(start),
        6: f(c_void_p, c_void_p)(lambda _: buffers), 9: f(c_bool, *two)(lambda _, op: True),
        10: f(c_bool, *two)(lambda _, other: other == buffers), 11: f(c_bool, *two)(offloads),
    }  # fmt: skip
    for i, function in functions.items():
        device[i] = _address(function)
    device[15] = backend
    return address


def _buffer_type(lib: _Library, get_name: Any, device: int, hollow: bool) -> int:
    """A type of buffers (`ggml_backend_buffer_type_i`) in host memory that says it is not; returns its address."""
    cpu = _words(lib.call("ggml_backend_cpu_buffer_type", c_void_p), 12)
    allocate_cpu = CFUNCTYPE(c_void_p, c_void_p, c_size_t)(cpu[1])
    nothing = lib.function(None, *[c_void_p] * 5)(lambda *_: None)
    base = lib.function(c_void_p, c_void_p)(lambda buffer: -(-_words(buffer)[12] // ALIGNMENT) * ALIGNMENT)

    def allocate(kind: int, size: int) -> int:
        buffer = allocate_cpu(kind, size + ALIGNMENT)
        values = _words(buffer)
        values[1], values[13] = _address(base), size
        if hollow:
            values[3] = values[4] = values[9] = _address(nothing)
        return int(buffer)

    kind = (c_uint64 * 12)(*cpu)
    lib.kept.append(kind)
    kind[0], kind[8], kind[9] = _address(get_name), device, 0
    kind[1] = _address(lib.function(c_void_p, c_void_p, c_size_t)(allocate))
    kind[3] = _address(lib.function(c_size_t, c_void_p)(lambda _: ALIGNMENT))
    kind[7] = _address(lib.function(c_bool, c_void_p)(lambda _: False))
    return ctypes.addressof(kind)


def _parsed(lib: _Library, params: Any) -> dict[str, Any]:
    """The values of the parameters that place and size a model."""
    split = [float(share) for share in params.tensor_split]
    types = {k: getattr(params, k) for k in ("cache_type_k", "cache_type_v")}
    return {
        **{name: getattr(params, name) for name in FIELDS},
        "tensor_split": split[: max((i + 1 for i, share in enumerate(split) if share), default=0)],
        "overrides": re.findall(r"(.+?)=(\w+)(?:,|$)", params.tensor_buft_overrides or ""),
        **{k: lib.call("ggml_type_name", c_char_p, c_int(int(v))).decode() for k, v in types.items()},
        "flash_attn": {-1: "auto", 0: "off", 1: "on"}[int(params.flash_attn_type)],
        "split_mode": ("none", "layer", "row", "tensor")[int(params.split_mode)],
    }


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """Parse, and load; in a process of its own."""
    lib = _Library()
    if gpus := request["gpus"]:
        free = request.get("free", [2**40] * len(gpus))
        _simulate(lib, gpus, free, hollow=request.get("hollow", False), pipeline=request.get("pipeline", True))
    if "tower" in request:
        return {"memory": _tower(lib, request["tower"])}
    params = lib.x.CommonParams()
    at = id(params) + HEADER
    args = ["llama-server", *request["args"]]
    argv = (c_char_p * (len(args) + 1))(*(a.encode() for a in args))
    parse = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
    if not lib.call(parse, c_bool, c_int(len(args)), argv, at, c_int(SERVER), None):
        return {}
    parsed = _parsed(lib, params)
    if request.get("only_parse"):
        return {"parsed": parsed}
    if params.n_parallel < 0:  # as llama-server, tools/server/server.cpp
        params.n_parallel, params.kv_unified = 4, True
    params.n_outputs_max, params.n_outputs_max_per_seq = params.n_parallel, 1
    lib.lib.llama_log_set(lib.kept[0], None)
    model_params = lib.call("_Z28common_model_params_to_llamaR13common_params", _Params, at)
    context_params = lib.call("_Z30common_context_params_to_llamaRK13common_params", _Params, at)
    if "free" in request:
        _fit(lib, params, model_params, context_params)
    model = lib.call("llama_model_load_from_file", c_void_p, params.model.path.encode(), model_params)
    context = lib.call("llama_init_from_model", c_void_p, model, context_params) if model else None
    if not context:
        raise RuntimeError("".join(lib.log[-5:]))
    return {
        "parsed": parsed, "memory": _memory(lib, context), "tensors": _tensors(lib, model),
        **(_speed(lib, context, *request["speed"]) if "speed" in request else {}), "log": "".join(lib.log),
    }  # fmt: skip


def _tower(lib: _Library, path: str) -> dict[str, list[int]]:
    """Bytes by device."""
    params = lib.call("mtmd_context_params_default", _Params)
    name = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
    nodes = _tree(lib.call(name, _Params, c_char_p(path.encode()), params))
    return {lib.call("ggml_backend_dev_name", c_char_p, device).decode(): [size] for device, size in nodes}


def _fit(lib: _Library, params: Any, model_params: Any, context_params: Any) -> None:
    """Fit the parameters to the free memory, as `common_init_from_params`."""
    devices, rules = (int(lib.call(f"llama_max_{n}", c_size_t)) for n in ("devices", "tensor_buft_overrides"))
    shares, overrides = (c_float * devices)(), (c_uint64 * (2 * rules))()
    margins = (c_size_t * devices)(*params.fit_params_target)
    lib.kept += [shares, overrides]
    name = (
        "_Z17common_fit_paramsPKcP18llama_model_paramsP20llama_context_paramsPfP32llama_model_tensor_buft_overridePmj"
        "PK22common_fit_extra_model14ggml_log_level"
    )
    smallest = ctypes.c_uint32(params.fit_params_min_ctx)
    by = (
        ctypes.byref(model_params),
        ctypes.byref(context_params),
        shares,
        overrides,
        margins,
        smallest,
        None,
        c_int(4),
    )
    lib.call(name, c_int, params.model.path.encode(), *by)


def _memory(lib: _Library, context: int) -> dict[str, list[int]]:
    """Bytes by type of buffer."""
    tree = lib.call("_Z26llama_get_memory_breakdownPK13llama_context", _Params, context)
    found: dict[str, list[int]] = {}
    for kind, *bytes_ in _tree(tree, 4):
        name = lib.name_of(kind)
        found[name] = [a + b for a, b in zip(found.get(name, [0, 0, 0]), bytes_, strict=True)]
    return found


def _tree(tree: Any, words: int = 2) -> list[list[int]]:
    """The keys and values in a `std::map`, each of `words` words."""
    found, nodes = [], [_words(ctypes.addressof(tree), 6)[2]]
    while nodes:
        if node := nodes.pop():
            _, _, left, right, *own = _words(node, 4 + words)
            nodes += [left, right]
            found.append(own)
    return found


def _tensors(lib: _Library, model: int) -> dict[str, str]:
    """The type of buffer of each tensor: a `std::vector` of pairs."""
    begin, end = _words(lib.call("_Z29llama_internal_get_tensor_mapPK11llama_model", c_void_p, model), 2)
    pairs = (_words(at, 2) for at in range(begin, end, 16))
    return {ctypes.string_at(name).decode(): lib.name_of(_words(_words(tensor, 2)[1])[11]) for name, tensor in pairs}


def _speed(lib: _Library, context: int, prompt: int, generate: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of prompts, and of tokens after the last one."""
    memory = lib.call("llama_get_memory", c_void_p, context)

    def decode(tokens: Sequence[int]) -> float:
        array = (c_int32 * len(tokens))(*tokens)
        begin = time.process_time()
        if lib.call("llama_decode", c_int, context, lib.call("llama_batch_get_one", _Batch, array, c_int(len(tokens)))):
            raise RuntimeError("".join(lib.log[-5:]))
        lib.call("llama_synchronize", None, context)
        return time.process_time() - begin

    decode([1])
    prompts = []
    for _ in range(repeats):
        lib.call("llama_memory_clear", None, memory, c_bool(False))
        prompts.append(decode([3 + i % 1000 for i in range(prompt)]))
    return {"prompt_s": prompts, "token_s": [decode([5 + i]) for i in range(generate)]}


if __name__ == "__main__":
    print("\n@@" + json.dumps(_answer(json.loads(sys.argv[1]))))
