"""Drivers that a test starts, watches and kills."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marin_pipeline.store.objects import ObjectStore, open_objects
from tests.run.sessions import wait_until

GATED = Path(__file__).parent / "gated.py"


def alive(pid: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def workers_of(pid: int) -> list[int]:
    """The living children of a process."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid and alive(int(folder.name)):
                found.append(int(folder.name))
    return found


@dataclass
class Scene:
    """One store, one gate, and the drivers at work on it."""

    folder: Path
    kind: str = "plain"
    where: str = ""
    """The prefix; by default a folder beside the gate."""
    seconds: str = "30"
    """Life of a lease."""
    drivers: list[subprocess.Popen[str]] = field(default_factory=list[subprocess.Popen[str]])

    @property
    def gate(self) -> Path:
        return self.folder / "gate"

    @property
    def prefix(self) -> str:
        return self.where or str(self.folder / "store")

    @property
    def objects(self) -> ObjectStore:
        """The store."""
        return open_objects(self.prefix)

    def only(self, pattern: str) -> list[str]:
        """Paths of the objects below `steps` that a pattern is found in."""
        return [info.path for info in self.objects.list("steps") if re.search(pattern, info.path)]

    def open_gate(self) -> None:
        (self.gate / "open").touch()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `gated.py --kind KIND --json` beside the others."""
        return self.start_program(GATED, "--kind", self.kind, *arguments)

    def start_program(self, program: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start a program with `--json` beside the others."""
        self.gate.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "MARIN_PREFIX": self.prefix,
            "MARIN_TEST_GATE": str(self.gate),
            "MARIN_LEASE_SECONDS": self.seconds,
        }
        driver = subprocess.Popen(
            [sys.executable, str(program), "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.drivers.append(driver)
        return driver

    def at_gate(self, name: str, but: tuple[int, ...] = ()) -> int:
        """Process id of a step that has come to the gate (or of its child, for `child`)."""

        def found() -> list[int]:
            pids = [int(file.name.rpartition("-")[2]) for file in self.gate.glob(f"{name}-*")]
            return [pid for pid in pids if pid not in but]

        return wait_until(found)[0]

    def event(self, driver: subprocess.Popen[str], verb: str) -> dict[str, Any]:
        """Read a driver's events up to the next one of a kind."""
        assert driver.stdout is not None
        for line in driver.stdout:
            event = json.loads(line)
            if event["event"] == verb:
                return event
        raise AssertionError(f"the driver ended without {verb}")

    def finish(self, driver: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
        """Exit code and summary (empty when there is none) of a driver, when it has ended."""
        out, err = driver.communicate(timeout=60)
        lines = [json.loads(line) for line in out.splitlines()]
        assert "Traceback" not in err, err
        summary = lines[-1] if lines and lines[-1]["event"] == "summary" else {"steps": []}
        return driver.returncode, {step["name"]: step for step in summary["steps"]}

    def undisturbed(self) -> dict[str, str]:
        """Output digests of a run that nothing disturbs, in a store of its own."""
        scene = Scene(self.folder / "undisturbed", self.kind)
        scene.folder.mkdir()
        scene.gate.mkdir()
        scene.open_gate()
        code, steps = scene.finish(scene.start())
        assert code == 0
        return {name: step["digest"] for name, step in steps.items()}

    def close(self) -> None:
        """End what a failed test left."""
        for driver in self.drivers:
            if driver.poll() is None:
                driver.kill()
            driver.wait()
            for stream in (driver.stdout, driver.stderr):
                if stream is not None:
                    stream.close()
