"""The weights and inputs of a program of `torch.export`, from its signature: names, types, sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch._export.serde import serialize

from placekit_core import ImporterError
from placekit_torch.error_lines import first_line
from placekit_torch.pt2_graph import Exported, Json, Run, single
from placekit_torch.pt2_options import Pt2Options
from placekit_torch.pt2_sizes import evaluated, symbols_in


class Reader:
    """Reads the signature of a program: its weights, its inputs and their sizes."""

    def __init__(self, options: Pt2Options, program: Json, tied: Mapping[str, str]) -> None:
        self.options, self.tied = options, tied
        try:
            module = program["graph_module"]
            self.graph, self.signature = module["graph"], module["signature"]
            self.inputs, self.values = list(self.graph["inputs"]), dict(self.graph["tensor_values"])
            self.specs = [single(each) for each in self.signature["input_specs"]]
            self.outputs = [dict(each) for each in self.signature["output_specs"]]
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise ValueError(f"its program lacks a part: {type(e).__name__}: {e}") from None
        self.used: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.batched = False

    def exported(self) -> Exported:
        """The program as a module. Raises ImporterError and ValueError."""
        try:
            return self._exported()
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError, OverflowError) as e:
            raise ValueError(f"its signature does not fit its graph: {type(e).__name__}: {first_line(e)}") from None

    def _exported(self) -> Exported:
        tensors: dict[str, torch.Tensor] = {}
        homes: dict[str, torch.Tensor] = {}
        placeholders: dict[str, str] = {}
        inputs: dict[str, torch.Tensor] = {}
        constants: Json = {}
        for kind, spec in self.specs:
            if kind in ("parameter", "buffer", "tensor_constant"):
                weight, name = str(spec[f"{kind}_name"]), str(spec["arg"]["name"])
                if not weight.isprintable():
                    raise ValueError(f"the name {weight!r:.100} has characters that cannot be printed")
                made = self._tensor(weight, self.values[name])
                if kind == "parameter":
                    made = torch.nn.Parameter(made, requires_grad=False)
                home = self.tied.get(weight)
                tensors[weight] = homes.setdefault(home, made) if home is not None else made
                placeholders[name] = weight
            elif kind == "user_input":
                self._input(spec["arg"], inputs, constants)
            elif kind == "constant_input":
                form, value = single(spec["value"])
                constants[str(spec["name"])] = None if form == "as_none" else value
            elif kind == "custom_obj":
                raise ImporterError(
                    f"{self.options.path}: it holds an object, {spec.get('custom_obj_name')!r:.100}, which would have to be"
                    " unpickled; unpickling runs code that is in the file",
                    "export the model without objects (torch.classes, opaque objects) as attributes",
                )
            else:
                raise ValueError(f"an input is of the kind {kind!r:.60}")
        self._check_options(inputs)
        run = Run(self.options.path, self.graph, placeholders, constants, self.outputs)
        return Exported(run, tensors, inputs)

    def _input(self, given: Json, inputs: dict[str, torch.Tensor], constants: Json) -> None:
        kind, value = single(given)
        if kind == "as_tensor":
            name = str(value["name"])
            if not name.isidentifier():
                raise ValueError(f"an input is called {name!r:.60}")
            inputs[name] = self._tensor(name, self.values[name], is_input=True)
        elif kind == "as_sym_int":
            raise ImporterError(
                f"{self.options.path}: an input is a number that is no constant, {value!r:.60}",
                "export the model with a constant in its place",
            )
        elif kind == "as_custom_obj":
            raise ImporterError(
                f"{self.options.path}: an input is an object, {value.get('name')!r:.60}", "give tensors"
            )

    def _tensor(self, name: str, meta: Json, is_input: bool = False) -> torch.Tensor:
        """A tensor on the meta device, as the file declares it."""
        dtype = serialize._SERIALIZE_TO_TORCH_DTYPE[meta["dtype"]]
        given = self.options.dims.get(name) if is_input else None
        sizes = [self._size(each, name, axis, is_input) for axis, each in enumerate(meta["sizes"])]
        if isinstance(given, list):
            self.used.add(name)
            fixed = ["as_int" in each for each in meta["sizes"]]
            wrong = [a for a, b, f in zip(given, sizes, fixed, strict=False) if f and a != b]
            if len(given) != len(sizes) or wrong:
                raise ImporterError(
                    f"{self.options.path}: input {name!r} has the shape {sizes}, and importer.dims gives it {given}",
                    "sizes that the export fixed cannot be changed: export it with dynamic_shapes",
                )
            sizes = given
        if math.prod(sizes) * dtype.itemsize > 2**53:
            raise ValueError(f"{name!r:.100} has the shape {sizes}")
        strides = [each.get("as_int") for each in meta["strides"]]
        if all(type(s) is int for s in strides) and not any("as_expr" in each for each in meta["sizes"]):
            if any(s < 0 for s in strides) or len(strides) != len(sizes):
                raise ValueError(f"{name!r:.100} has the strides {strides}")
            return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        return torch.empty(sizes, dtype=dtype, device="meta")

    def _size(self, given: Json, name: str, axis: int, is_input: bool) -> int:
        kind, value = single(given)
        if kind == "as_int":
            size = value
        else:
            symbols = symbols_in(value["expr_str"])
            known = {s: self.options.dims.get(s) for s in symbols}
            if is_input and axis == 0 and self.options.batch is not None:
                size, self.batched = self.options.batch, True
            elif symbols and all(isinstance(v, int) for v in known.values()):
                self.used |= known.keys()
                size = evaluated(value["expr_str"], known)
            elif isinstance(hint := (value.get("hint") or {}).get("as_int"), int):
                size = hint
            else:
                raise ImporterError(
                    f"{self.options.path}: {'input' if is_input else 'weight'} {name!r} has no size for dimension {axis}",
                    f"give 'importer.dims={{{', '.join(f'{s}: N' for s in symbols)}}}'",
                )
        if type(size) is not int or not 0 <= size <= 2**53:
            raise ValueError(f"{name!r:.100} has the size {size!r:.60} in dimension {axis}")
        if is_input:
            self.sizes |= dict.fromkeys(symbols_in(value["expr_str"]) if kind != "as_int" else (), size)
        return size

    def _check_options(self, inputs: Mapping[str, torch.Tensor]) -> None:
        unused = [k for k in self.options.dims if k not in self.used and k not in self.sizes]
        if unused:
            raise ImporterError(
                f"{self.options.path}: no input and no open dimension is called {unused[0]!r}",
                f"inputs: {', '.join(inputs) or 'none'}; open dimensions: {', '.join(self.sizes) or 'none'}",
            )
        if self.options.batch is not None and not self.batched:
            raise ImporterError(
                f"{self.options.path}: importer.batch={self.options.batch}, but no input leaves its first dimension open",
                "the export fixed the sizes: export it with dynamic_shapes",
            )
