"""Hydra's launcher `placekit_ray`: runs the jobs of a sweep in processes of a Ray cluster.

    placekit run -m policy=etf,heft seed=1,2,3 hydra/launcher=placekit_ray

Hydra finds launchers only in the package `hydra_plugins`. The folder of the sweep must be the same on all machines.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

ConfigStore.instance().store(
    group="hydra/launcher",
    name="placekit_ray",
    node={"_target_": "hydra_plugins.placekit_ray_launcher.RayLauncher", "address": None, "job_cpus": 1.0},
    provider="placekit-ray",
)


class RayLauncher(Launcher):
    """Runs each job as a Ray task.

    Args:
        address: a running cluster, HOST:PORT or auto; None: RAY_ADDRESS, else a new cluster on this computer.
        job_cpus: CPUs that Ray reserves for each job.
    """

    def __init__(self, address: str | None, job_cpus: float) -> None:
        self.address, self.job_cpus = address, job_cpus

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.context, self.task, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs. A job whose process dies three times stays unfinished; `placekit run resume=` tries it again."""
        import ray
        from placekit_ray.cluster import check_versions, connect, distributions_of
        from placekit_ray.fleet import LOST
        from placekit_ray.options import ClusterOptions

        connect(ClusterOptions.model_validate({"address": self.address}))
        check_versions(distributions_of([]))
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        shared = ray.put((Path.cwd(), self.context, self.config, self.task, Singleton.get_state()))
        run: Any = ray.remote(num_cpus=self.job_cpus, max_retries=2)(_run)
        references = [run.remote(shared, initial_job_idx + i, list(job)) for i, job in enumerate(job_overrides)]
        results: dict[Any, JobReturn] = {}
        left = list(references)
        while left:
            [done], left = ray.wait(left)
            try:
                results[done], printed = ray.get(done)
                print(printed, end="", flush=True)  # in the order in which jobs end
            except LOST:
                results[done] = JobReturn(status=JobStatus.COMPLETED)
                results[done].return_value = math.nan
        return [results[reference] for reference in references]


def _run(shared: tuple[Any, ...], number: int, overrides: list[str]) -> tuple[JobReturn, str]:
    """Run one job, in a process of the cluster. Returns its result and its output."""
    folder, context, config, task, state = shared
    os.chdir(folder)
    setup_globals()
    Singleton.set_state(state)
    own = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(own):
        own.hydra.job.id = f"{own.hydra.job.name}_{number}"
        own.hydra.job.num = number
    HydraConfig.instance().set_config(own)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        done = run_job(
            hydra_context=context, config=own, task_function=task,
            job_dir_key="hydra.sweep.dir", job_subdir_key="hydra.sweep.subdir",
        )  # fmt: skip
    return done, printed.getvalue()
