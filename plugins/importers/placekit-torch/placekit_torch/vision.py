"""Makes torchvision, and timm, which needs it, importable where torchvision's C++ operators do not load."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from typing import Any

import torch

_torch: Any = torch  # for functions without types
_missing = _torch.library.Library("torchvision", "FRAGMENT")


def declare_torchvision() -> None:
    """Declare the two operators without which `import torchvision` fails, if it has not been imported and they do not load.

    PyPI's torchvision is built against the CUDA build of torch. Beside a CPU build its C++ library does not load, and the
    import ends with "operator torchvision::nms does not exist". The operators that are declared here cannot run:
    torchvision says so itself when they are called ("Couldn't load custom C++ ops"). All of torchvision that is written in
    Python works, `roi_align` included. Call it before the import; it is harmless elsewhere.
    """
    found = None if "torchvision" in sys.modules else importlib.util.find_spec("torchvision")
    if found is None or not found.submodule_search_locations or hasattr(torch.ops.torchvision, "nms"):
        return
    folder = found.submodule_search_locations[0]
    suffixes = importlib.machinery.EXTENSION_SUFFIXES
    library = importlib.machinery.FileFinder(folder, (importlib.machinery.ExtensionFileLoader, suffixes)).find_spec(
        "_C"
    )
    try:
        _torch.ops.load_library(library.origin if library is not None else "")
    except (OSError, RuntimeError):
        for operator in ("nms", "qnms"):
            _missing.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
