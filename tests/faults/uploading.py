"""An experiment whose step writes a file that goes up in several parts, so that a test can kill it while it does.

The step leaves its process's id in `$MARIN_TEST_GATE/pid-<id>`.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

from marin_pipeline import Artifact, Context, main, step

MIB = 2**20


@step
def large(ctx: Context, mebibytes: int, streamed: bool) -> int:
    Path(os.environ["MARIN_TEST_GATE"], f"pid-{os.getpid()}").touch()
    (ctx.out / "small.txt").write_text("small")
    chance = random.Random(mebibytes)
    with ctx.stream("large.bin") if streamed else (ctx.out / "large.bin").open("wb") as file:
        for _ in range(mebibytes):
            file.write(chance.randbytes(MIB))
    return mebibytes


@step
def first_bytes(ctx: Context, made: Artifact[int]) -> str:
    with (made / "large.bin").path.open("rb") as file:
        return file.read(16).hex()


def build(streamed: bool = False) -> Artifact[str]:
    return first_bytes(made=large(mebibytes=120 if streamed else 60, streamed=streamed))


if __name__ == "__main__":
    main(build)
