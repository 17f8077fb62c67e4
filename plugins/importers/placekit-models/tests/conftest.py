"""Makes `made_gguf` and `real_llama` importable: pytest's import mode `importlib` does not put this folder on the path."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
