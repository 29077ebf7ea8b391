"""Several processes on the same local files: exactly one winner an object, no update lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from marin_pipeline.store.objects import open_objects

RACER = Path(__file__).parent / "racer.py"
PROCESSES = 4


def race(prefix: Path, kind: str, rounds: int) -> list[int]:
    """Run racers from one starting shot; how often each won."""
    racers = [
        subprocess.Popen(
            [sys.executable, str(RACER), str(prefix), kind, str(number), str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.close()
    won: list[int] = []
    for racer in racers:
        assert racer.stdout is not None
        won.append(int(racer.stdout.read()))
        assert racer.wait() == 0
        racer.stdout.close()
    return won


def test_processes_that_create_one_object_have_exactly_one_winner(tmp_path: Path) -> None:
    won = race(tmp_path, "create", 200)
    assert sum(won) == 200
    objects = open_objects(str(tmp_path))
    for number in range(200):
        found = objects.read(f"commits/{number}.json")
        assert found is not None
        assert found.data.endswith(f" {number}".encode())
    assert objects.names("tmp/1d") == []


def test_processes_that_swap_one_object_lose_no_update(tmp_path: Path) -> None:
    open_objects(str(tmp_path)).create("counter", b"0")
    race(tmp_path, "swap", 50)
    found = open_objects(str(tmp_path)).read("counter")
    assert found is not None
    assert int(found.data) == PROCESSES * 50
