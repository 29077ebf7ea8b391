"""A graph of many small steps in layers, for the executor's benchmark: each writes one file of 65 bytes and reads two.

python tests/benchmarks/layered.py --prefix /tmp/layered
python tests/benchmarks/layered.py plan --prefix /tmp/layered n-10-025.salt=1
"""

from __future__ import annotations

import hashlib

from marin_pipeline import Artifact, Context, main, step

FILE = "text.txt"


@step
def node(ctx: Context, name: str, parents: list[Artifact[None]], salt: str = "0") -> None:
    """Write the sha256 of a name, a salt and the parents' files."""
    texts = [(parent / FILE).read_text() for parent in parents]
    text = hashlib.sha256("|".join([name, salt, *texts]).encode()).hexdigest()
    (ctx.out / FILE).write_text(f"{text}\n")


def layered(layers: int = 20, width: int = 50) -> list[Artifact[None]]:
    """Layers of steps; each step of a layer reads two neighbours of the layer above, the last one the first again."""
    above: list[Artifact[None]] = []
    for layer in range(layers):
        names = [f"n-{layer:02d}-{place:03d}" for place in range(width)]
        above = [
            node(name, [above[place], above[(place + 1) % width]] if above else []).named(name)
            for place, name in enumerate(names)
        ]
    return above


if __name__ == "__main__":
    main(layered)
