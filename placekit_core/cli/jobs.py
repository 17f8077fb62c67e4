"""The names of a sweep's jobs, which are the names of their folders."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence


def job_name(task: Sequence[str], shared: Sequence[str]) -> str:
    """The name of a job of a sweep: the overrides in which it differs from other jobs, the policy first.

    `shared` are the keys that all jobs share. A cluster file has the name that it would have as a preset, and a machine in words
    these words. The name is a valid folder name: no separators, quotes or `..`, not too long.
    """
    own = [o for o in task if key_of(o) not in shared] or [o for o in task if key_of(o) not in ("run_dir", "log")]
    own = [re.sub(r"^\+*cluster\.(?:path|words)=(?:.*[/\\])?'?([^/\\]+)\.ya?ml'?$", r"cluster=\1", o) for o in own]
    own = [re.sub(r"^\+*cluster\.words=", "cluster=", o) for o in own]
    text = ",".join(sorted((o.lstrip("+") for o in own), key=lambda o: (key_of(o) != "policy", o)))
    name = re.sub(r"[^\w.,=+@\-]+", "_", text.replace("'", "").replace('"', "")).replace("..", "_") or "defaults"
    return name if len(name) <= 150 else f"{name[:130]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def key_of(override: str) -> str:
    """The key of `++key=value`."""
    return override.lstrip("+~").partition("=")[0]
