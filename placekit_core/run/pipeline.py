"""THE data flow, in the order of the picture in docs/data-flow.md.

importer --Graph--> grouper --Grouping--> policy --Placement--> finish
                                           ^  |                   ^
                                    update |  | Placements        | Measurement, Schedule
                                           |  v                   |
                                         trainer --evaluate()--> backend
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from placekit_core.contracts.result import Result
from placekit_core.run.assembly import Assembly
from placekit_core.run.checkpoint import load_checkpoint
from placekit_core.run.current_run import Observer as Observer, Run
from placekit_core.run.finish import end


def run(assembly: Assembly, run_dir: str | Path, *, resume: bool = False, observer: Observer | None = None) -> Result:
    """Place the programs of `assembly`, and write the run directory.

    With `resume`, continue from the checkpoint in `run_dir`; the result is the same as if the run had never stopped.

    Raises PlacekitError; NothingFits if no placement that fits was found; RunFailed if a component raised after something
    was evaluated; Interrupted after Ctrl-C. The last three hold the result so far, which is also written.
    """
    with contextlib.ExitStack() as stack:
        current = Run(assembly, Path(run_dir), observer or Observer(), stack)
        error: BaseException | None = None
        try:
            current.begin(resume)
            checkpoint = load_checkpoint(current.run_dir) if resume else None
            current.open()
            current.place(checkpoint)
        except BaseException as e:  # a component may raise anything, or leave Python by sys.exit
            error = e
        return end(current, error)
