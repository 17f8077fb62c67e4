"""The graph of a program of `torch.export` as a module that runs it node by node, from the JSON in the archive.

The format is `torch._export.serde.schema`. What `torch.export.load` does with texts is not safe for files from outside: it
looks up functions by any dotted name, and calls them. Here a node calls an operator of torch (or of a library that is loaded),
or one of `_FUNCTIONS`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch._export.serde import serialize

from placekit_core import ImporterError, shortened
from placekit_torch.error_lines import first_line
from placekit_torch.joint import TAG, Tag, outside_calls
from placekit_torch.tracing import is_data_dependent

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"_operator.{name}": getattr(operator, name) for name in (
        "add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pos", "abs", "eq", "ne", "lt", "le", "gt", "ge", "and_",
        "or_", "not_", "getitem",
    )},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    "torch.sym_int": int, "torch.sym_float": float, "torch.sym_max": max, "torch.sym_min": min,
    "torch.sym_not": operator.not_, "torch._sym_sqrt": math.sqrt, "torch.sym_sum": sum,
}  # fmt: skip
"""Functions of whole numbers and sizes that a node may call."""
_TRUSTED = ("aten", "prims")  # libraries whose operators may take texts, such as the kind of a `gelu`
_UNSAFE = frozenset(["from_file"])  # those of their operators that read files
_ASSERTIONS = ("_assert", "sym_constrain_range")
_INLINED = ("wrap_with_set_grad_enabled", "wrap_with_autocast")
_MAX_NUMBER, _MAX_PARTS = 2**62, 10_000
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "quantized_lstm")
_LISTS = ("unbind", "split", "unsafe_split", "chunk", "unsafe_chunk", "tensor_split", "hsplit", "vsplit", "dsplit")
_ENUMS: dict[str, Mapping[int, Any]] = {
    "as_scalar_type": serialize._SERIALIZE_TO_TORCH_DTYPE,
    "as_memory_format": serialize._SERIALIZE_TO_TORCH_MEMORY_FORMAT,
    "as_layout": serialize._SERIALIZE_TO_TORCH_LAYOUT,
}
Json = dict[str, Any]


def single(given: Any) -> tuple[str, Any]:
    """Kind and value of `{kind: value}`, which is how the format writes one of several things. Raises ValueError."""
    if not isinstance(given, dict) or len(given) != 1:
        raise ValueError(f"{given!r:.60} is not one value with its kind")
    return next(iter(given.items()))


class Exported(torch.nn.Module):
    """A program of `torch.export` as a module: its weights under their names, on the meta device."""

    def __init__(self, run: Run, tensors: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.run, self.inputs = run, dict(inputs)
        for name, tensor in tensors.items():
            *path, last = name.split(".")
            place: torch.nn.Module = self
            for part in path:
                if part not in place._modules:
                    place.add_module(part, torch.nn.Module())
                place = place._modules[part]  # type: ignore[assignment]
            if isinstance(tensor, torch.nn.Parameter):
                place.register_parameter(last, tensor)
            else:
                place.register_buffer(last, tensor)

    def examples(self) -> dict[str, torch.Tensor]:
        """The inputs by name, on the meta device."""
        return self.inputs

    def forward(self, **inputs: torch.Tensor) -> list[Any]:
        """The outputs; buffers are changed in place."""
        named = {
            **dict(self.named_parameters(remove_duplicate=False)),
            **dict(self.named_buffers(remove_duplicate=False)),
        }
        return self.run.whole(named, inputs)


class Run:
    """Runs the nodes of a program. Errors are ImporterErrors that name the node."""

    def __init__(
        self, path: str, graph: Json, placeholders: Mapping[str, str], constants: Json, outputs: list[Json]
    ) -> None:
        self.path, self.graph, self.placeholders, self.constants, self.outputs = (
            path,
            graph,
            placeholders,
            constants,
            outputs,
        )
        self.changed = {str(name): str(value) for each in outputs for name, value in _changes(each)}

    def __deepcopy__(self, memo: Any) -> Run:
        return self

    def whole(self, tensors: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor]) -> list[Any]:
        """The outputs of the program."""
        values: dict[str, Any] = {**self.constants, **inputs}
        values |= {name: tensors[weight] for name, weight in self.placeholders.items()}
        before = fx_traceback.current_meta.get("custom")
        try:
            self.nodes(self.graph, values)
            for weight, name in self.changed.items():
                fx_traceback.current_meta["custom"] = {TAG: outside_calls(weight.rpartition(".")[0])}
                tensors[weight].copy_(_found(values, name))
        finally:
            fx_traceback.current_meta["custom"] = before
        return [self.argument(each["user_output"]["arg"], values) for each in self.outputs if "user_output" in each]

    def nodes(self, graph: Json, values: dict[str, Any]) -> None:
        """Run the nodes of a graph; `values` gets their results."""
        for number, node in enumerate(graph["nodes"]):
            target = str(node["target"])
            fx_traceback.current_meta["custom"] = {TAG: tag_of(node)}
            try:
                if not any(part in target.rpartition("ops.")[2] for part in _ASSERTIONS):
                    self.bind(node, self.call(target, node, values), values)
            except ImporterError:
                raise
            except Exception as e:
                data = "its result or its shape depends on data" if is_data_dependent(e) else ""
                why = data or f"{type(e).__name__}: {first_line(e)}"
                raise ImporterError(
                    shortened(f"{self.path}: node {number} ({target[:100]}): {why}"),
                    "the program must run on inputs of these shapes, without knowing the data",
                ) from e

    def call(self, target: str, node: Json, values: dict[str, Any]) -> Any:
        """The result of a node."""
        if target.startswith("torch.ops.higher_order."):
            return self.inline(target.rpartition(".")[2], node, values)
        given = [
            (str(each.get("name", "")), self.argument(each["arg"], values), each.get("kind", 0))
            for each in node["inputs"]
        ]
        if target in _FUNCTIONS:
            made = _FUNCTIONS[target](*(value for _, value, _ in given))
            if isinstance(made, int | float) and not abs(made) <= _MAX_NUMBER:
                raise ValueError(f"a size becomes {made:.3g}")
            return made
        if target == "torch.ops.aten.lift_fresh_copy.default":  # protects a constant, which nothing changes here
            return given[0][1]
        function = find_operator(target)
        arguments = function._schema.arguments
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for name, value, kind in given:
            at = arguments[len(positional)] if len(positional) < len(arguments) else None
            if kind != 2 and not named and at is not None and at.name == name and not at.kwarg_only:
                positional.append(value)
            else:
                named[name] = value
        _check_parts(function._opname, [*positional, *named.values()])
        return function(*positional, **named)

    def inline(self, name: str, node: Json, values: dict[str, Any]) -> Any:
        """The result of a graph within the graph, for operators that only run it under a setting."""
        if name not in _INLINED:
            raise ImporterError(
                f"{self.path}: higher-order operator {name[:60]!r} is not taken apart",
                "a placement is the same for all data: export the model without control flow (torch.cond, while_loop, scan)",
            )
        arguments = [each["arg"] for each in node["inputs"]]
        at = next(i for i, each in enumerate(arguments) if "as_graph" in each)
        graph = arguments[at]["as_graph"]["graph"]
        given = [self.argument(each, values) for each in arguments[at + 1 :]]
        inner = {_input_name(each): value for each, value in zip(graph["inputs"], given, strict=True)}
        settings = [self.argument(each, values) for each in arguments[:at]]
        if name == "wrap_with_autocast":
            with torch.autocast("cpu", dtype=settings[1], enabled=bool(settings[2])):
                self.nodes(graph, inner)
        else:
            self.nodes(graph, inner)
        made = [self.argument(each, inner) for each in graph["outputs"]]
        return made[0] if len(made) == 1 and graph.get("is_single_tensor_return") else made

    def bind(self, node: Json, result: Any, values: dict[str, Any]) -> None:
        """Store the result of a node under the names of its outputs."""
        outputs = node["outputs"]
        if len(outputs) == 1 and node.get("is_hop_single_tensor_return") is not False:
            _bind(outputs[0], result, values)
        elif outputs:
            if not isinstance(result, list | tuple) or len(result) < len(outputs):
                raise ValueError(f"it has fewer results than {len(outputs)}")
            for output, part in zip(outputs, result, strict=False):
                _bind(output, part, values)

    def argument(self, given: Json, values: Mapping[str, Any]) -> Any:
        """The value of an argument."""
        kind, value = single(given)
        if kind in ("as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool", "as_optional_tensor"):
            return _symbol(value, values)
        if kind in ("as_tensors", "as_sym_ints", "as_sym_floats", "as_sym_bools", "as_optional_tensors"):
            return [_symbol(each, values) for each in value]
        if kind == "as_nested_tensors":
            return [[_symbol(each, values) for each in row] for row in value]
        if kind == "as_none":
            return None
        if kind in _ENUMS:
            return _ENUMS[kind][value]
        if kind == "as_scalar_types":
            return [_ENUMS["as_scalar_type"][each] for each in value]
        if kind == "as_device":
            return torch.device("cpu")  # everything is traced there
        if kind == "as_complex":
            return complex(value["real"], value["imag"])
        if kind == "as_float":
            return float(value)
        if kind == "as_floats":
            return [float(each) for each in value]
        if kind in _PLAIN:
            return value
        raise ValueError(f"an argument is of the kind {kind!r:.60}, which needs objects that are unpickled")


_PLAIN = ("as_int", "as_ints", "as_bool", "as_bools", "as_string", "as_strings", "as_int_lists")


def _found(values: Mapping[str, Any], name: Any) -> Any:
    if name not in values:
        raise ValueError(f"it reads {name!r:.100}, which nothing before it writes")
    return values[name]


def _symbol(given: Json, values: Mapping[str, Any]) -> Any:
    """The value of a tensor or of a number that is given, or computed by a node."""
    kind, value = single(given)
    if kind == "as_none":
        return None
    if kind in ("name", "as_name"):
        return _found(values, value)
    if kind == "as_tensor":
        return _found(values, value["name"])
    if kind in ("as_int", "as_float", "as_bool"):
        return value
    raise ValueError(f"an argument is {given!r:.60}")


def _bind(output: Json, result: Any, values: dict[str, Any]) -> None:
    kind, value = single(output)
    if kind in ("as_tensors", "as_optional_tensors", "as_sym_ints"):
        for each, part in zip(value, result, strict=True):
            _bind(each if kind == "as_optional_tensors" else {"as_tensor": each}, part, values)
    elif kind != "as_none":
        name = value.get("name", value.get("as_name"))
        if name is not None:
            values[str(name)] = result


def _input_name(given: Json) -> str:
    _, value = single(given)
    return str(value.get("name", value.get("as_name"))) if isinstance(value, dict) else ""


def _changes(output: Json) -> list[tuple[str, str]]:
    """For an output that is the new value of a buffer: the buffer, and the value."""
    return [(each["buffer_name"], each["arg"]["name"]) for key, each in output.items() if key == "buffer_mutation"]


def find_operator(target: str) -> Any:
    """The operator `torch.ops.LIBRARY.NAME.OVERLOAD`. Raises ValueError if there is none, or if a file must not call it."""
    parts = target.split(".")
    if parts[:2] != ["torch", "ops"] or len(parts) != 5 or not all(map(str.isidentifier, parts)):
        raise ValueError(f"{target!r:.100} is no operator, and a program from a file may call operators only")
    library, name, overload = parts[2:]
    packet = getattr(getattr(torch.ops, library), name, None)
    known = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ()  # type: ignore[no-untyped-call]
    if overload not in known:
        raise ValueError(
            f"there is no operator {library}::{name}.{overload}: import the package that defines it before (from Python), or"
            " export the program with this version of torch"
        )
    operator = getattr(packet, overload)
    if not torch._C._dispatch_has_kernel(operator.name()):
        raise ValueError(f"operator {library}::{name} is one of TorchScript, which no exported program calls")
    takes_text = any("str" in str(argument.type) for argument in operator._schema.arguments)
    if name in _UNSAFE or (takes_text and library not in _TRUSTED):
        # fake tensors do not hold off what has no shape of its own, e.g. `image::read_file(str) -> Tensor`
        raise ValueError(
            f"operator {library}::{name} may read or write files: it takes a text, which may be a file's name"
        )
    return operator


def _check_parts(name: str, arguments: Sequence[Any]) -> None:
    """Raise ValueError for an operator that would make a list of very many tensors, or a loop of very many steps."""
    tensor = next((a for a in arguments if isinstance(a, torch.Tensor)), None)
    if tensor is None or tensor.dim() == 0 or name not in (*_LISTS, *_RECURRENT):
        return
    longest = max(tensor.shape)
    numbers = [a for a in arguments if type(a) is int]
    if name in ("split", "unsafe_split") and numbers:
        longest = longest // max(numbers[0], 1) + 1
    elif name not in (*_RECURRENT, "unbind"):
        longest = min([longest, *numbers[:1]])
    if longest > _MAX_PARTS:
        raise ValueError(f"it has {longest:,} parts")


def tag_of(node: Json) -> Tag:
    """The module call that a node was traced in: `nn_module_stack` has `key,path,type;...`, with `@N` in a further call's key."""
    metadata = node.get("metadata")
    text = metadata.get("nn_module_stack") if isinstance(metadata, dict) else None
    if not isinstance(text, str):
        return Tag()
    active: dict[str, int] = {}
    module = ""
    for each in text.split(";"):
        fields = each.split(",")
        if len(fields) >= 3:
            key, path = fields[0], fields[1].removeprefix("L['self']").removeprefix(".")
            call = key.rpartition("@")[2] if "@" in key else "0"
            module = path.partition("@")[0]
            active[module] = int(call) if call.isdigit() and len(call) < 9 else 0
    if not module.isprintable():
        return Tag()
    parts = module.split(".") if module else []
    prefixes = (".".join(parts[: i + 1]) for i in range(len(parts)))
    return Tag(module, active.get(module, 0), ".".join(str(active.get(p, 0)) for p in prefixes))
