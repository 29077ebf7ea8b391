"""Runs cells: each in processes of its own, with as many devices as it says."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

from tests.conftest import ROOT
from tests.servers import free_port
from tests.train.invariant_worker import Cell


def run(cell: Cell) -> dict[str, Any]:
    """What the first process of a cell prints.

    Raises:
        AssertionError: with the errors of the process that failed.
    """
    cell = dataclasses.replace(cell, port=free_port())
    command = [sys.executable, "-m", "tests.train.invariant_worker", cell.arguments()]
    processes = [
        subprocess.Popen(
            [*command, str(number)],
            env=cell.environment(),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(cell.processes)
    ]
    told = [process.communicate(timeout=300) for process in processes]
    for process, (_, errors) in zip(processes, told, strict=True):
        assert process.returncode == 0, errors[-3000:]
    return json.loads(told[0][0].strip().splitlines()[-1])


def digests(cell: Cell) -> list[str]:
    """The digest of the state after each step."""
    return run(cell)["digests"]
