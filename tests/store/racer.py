"""One of several processes that write the same object at the same moment; says on stdout how often it won.

Usage: racer.py PREFIX create|swap NAME ROUNDS. Starts when its stdin is closed.
"""

from __future__ import annotations

import sys

from marin_pipeline.store.objects import open_objects


def main() -> None:
    prefix, kind, name, rounds = sys.argv[1:]
    objects = open_objects(prefix)
    print("ready", flush=True)
    sys.stdin.read()
    won = 0
    for number in range(int(rounds)):
        if kind == "create":
            won += objects.create(f"commits/{number}.json", f"{name} {number}".encode()) is not None
        else:
            while True:
                found = objects.read("counter")
                assert found is not None
                if objects.swap("counter", str(int(found.data) + 1).encode(), found.version):
                    break
    print(won, flush=True)


if __name__ == "__main__":
    main()
