"""Runs `placekit` in forks of a process that has imported torch and compiled loops, to save these seconds in each command.

For `outputs.py`, which runs a hundred commands: in `with commands(folder, python):`, `folder/placekit` is a program like
`placekit`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
import site
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

PRELOADED = ("placekit_core.cli.run", "placekit_core.cli.compose", "placekit_runtimes.apply", "placekit_torch.importer",
             "placekit_zoo.base", "placekit_search.local_search", "placekit_search.portfolio", "placekit_report.logger",
             "placekit_sim.simulator", "placekit_pipeline.chain", "placekit_report.compare_labels", "hydra.utils",
             "scipy.optimize", "scipy.sparse.csgraph", "torch._dynamo")  # fmt: skip
"""Modules that most runs import anyway."""
CLIENT = """#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(asked).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(asked)
    sys.exit(int(server.makefile().read() or 1))
"""
"""The program: hands its arguments, folder, environment and streams over, and ends with the exit code that comes back."""


@contextlib.contextmanager
def commands(folder: Path, python: Path) -> Iterator[None]:
    """Inside, there is a program `placekit` in `folder`, which is created. It runs what `python` has installed by then."""
    folder.mkdir()
    address, program = str(folder / "socket"), folder / "placekit"
    program.write_text(CLIENT.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
        server = subprocess.Popen(
            [str(python), __file__, str(listening.fileno())], pass_fds=[listening.fileno()], env=variables,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        yield
    finally:
        server.terminate()
        server.wait()


def serve(listening: socket.socket) -> int:
    """Answer requests until the process is ended; returns in the forked processes only, with their exit code."""
    from placekit_core.cli.main import main

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that wait for a command
    while True:
        connection, _ = listening.accept()
        if os.fork():
            connection.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        length, streams, _, _ = socket.recv_fds(connection, 4, 3)
        asked = connection.makefile("rb").read(int.from_bytes(length, "big"))
        child = os.fork()
        if child:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            connection.sendall(str(code if code >= 0 else 128 - code).encode())
            os._exit(0)
        listening.close()
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        sys.argv, cwd, variables = json.loads(asked)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(variables)
        site.addsitedir(sysconfig.get_path("purelib"))  # what has been installed meanwhile
        importlib.invalidate_caches()
        return main()


if __name__ == "__main__":
    del sys.path[0]  # this folder, from which no command imports
    for name in PRELOADED:
        __import__(name)
    importlib.import_module("placekit_core.run.progress").EVERY_S = math.inf  # no more lines because a machine is slow
    importlib.import_module("placekit_search.walk")  # what default runs compile or load
    importlib.import_module("placekit_sim.compiled_variants").compiled("plain")
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
