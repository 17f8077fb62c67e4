"""Tracers `export` and `dynamo`: a module becomes what `torch.export` makes of it, before the joint graph is traced.

`dynamo` is the strict form, which reads the module's Python code; `export` runs it. Both need real weights, and refuse
modules whose Python values depend on data. Paths of modules come from the exported operations (`nn_module_stack`).
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from typing import Any

import torch
import torch.utils._pytree as pytree

from placekit_core import ImporterError
from placekit_torch.joint import TAG, Tag
from placekit_torch.step import Step, refuse_keywords
from placekit_torch.tracing import explain


def exported(step: Step, *, strict: bool, train: bool, name: str) -> Step:
    """`step` with its module exported. Raises ImporterError with the line that torch.export refuses."""
    step.module.train(train)
    arguments, keywords = step.arguments
    try:
        with torch.set_grad_enabled(train), contextlib.redirect_stderr(io.StringIO()):  # dynamo prints what it refuses
            module: Any = torch.export.export(step.module, arguments, keywords, strict=strict).module(
                check_guards=False
            )
    except Exception as e:
        if isinstance(e, TypeError):
            refuse_keywords(step.module, arguments, keywords, name, e)
        message, hint = explain(e, f"{name} cannot be exported")
        frames = re.findall(r'File "(.+?)", line (\d+)', str(e))  # dynamo names the user's line in its text only
        if frames and "\n" not in message:
            file, line = frames[-1]
            message += f"\n  {file}:{line}: {linecache.getline(file, int(line)).strip()}"
        if "data-dependent" in message.lower():
            hint = "importer.tracer=make_fx decides it by the values of the example"
        raise ImporterError(message, hint) from e
    return Step(module, step.inputs, step.loss, step.targets, step.optimizer)


def _tag(node: torch.fx.Node) -> Tag:
    """Tag of the innermost module; the key of a later call of a module ends with `@call`."""
    stack = node.meta.get("nn_module_stack", {}).items()
    called = [(str(path).partition("@")[0], str(key).partition("@")[2]) for key, (path, _) in stack]
    if not called:
        return Tag()
    calls = {path: int(call or 0) for path, call in called}
    path = called[-1][0]
    parts = path.split(".") if path else []
    prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return Tag(path, calls[path], ".".join(str(calls.get(p, 0)) for p in prefixes))


def interpret(module: Any) -> None:
    """Make an exported module, after it was copied, run its operations one by one, each with its tag."""
    codegen = module.graph._codegen
    for node in module.graph.nodes:  # what is traced while a node runs gets its meta
        node.meta = {"custom": {TAG: _tag(node)}}

    def forward(*args: Any, **kwargs: Any) -> Any:
        flat = pytree.tree_leaves((args, kwargs))
        results = torch.fx.Interpreter(module).run(*flat, enable_io_processing=False)
        return pytree.tree_unflatten(results, codegen.pytree_info.out_spec)

    module._forward_pre_hooks.clear()  # they check the inputs
    module.forward = forward
