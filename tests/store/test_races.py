"""Several processes at the same store: exactly one winner an object, no update lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from marin_pipeline.store.objects import open_objects
from tests.stores import counts_for, new_prefix

RACER = Path(__file__).parent / "racer.py"
PROCESSES = 4


def race(prefix: str, kind: str, rounds: int) -> list[int]:
    """Run racers from one starting shot; how often each won."""
    racers = [
        subprocess.Popen(
            [sys.executable, str(RACER), prefix, kind, str(number), str(rounds)],
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


# SeaweedFS may take a second a race to tell the loser; who wins is told at once.
@pytest.mark.parametrize(
    ("store", "rounds"),
    [("local", 200), ("gs", 50), ("s3", 4), pytest.param("s3", 60, marks=pytest.mark.slow)],
)
def test_processes_that_create_one_object_have_exactly_one_winner(
    request: pytest.FixtureRequest, store: str, rounds: int
) -> None:
    prefix = new_prefix(request, store)
    counts_for(request, store, rounds)
    won = race(prefix, "create", rounds)
    assert sum(won) == rounds
    objects = open_objects(prefix)
    for number in range(rounds):
        found = objects.read(f"commits/{number}.json")
        assert found is not None
        assert found.data.endswith(f" {number}".encode())
    assert objects.names("tmp/1d") == []


@pytest.mark.parametrize(
    ("store", "rounds"), [("local", 50), ("gs", 10), ("s3", 2), pytest.param("s3", 20, marks=pytest.mark.slow)]
)
def test_processes_that_swap_one_object_lose_no_update(request: pytest.FixtureRequest, store: str, rounds: int) -> None:
    prefix = new_prefix(request, store)
    counts_for(request, store, rounds * PROCESSES)
    open_objects(prefix).create("counter", b"0")
    race(prefix, "swap", rounds)
    found = open_objects(prefix).read("counter")
    assert found is not None
    assert int(found.data) == PROCESSES * rounds
