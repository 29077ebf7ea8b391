"""Keys: as docs/keys.md says, and equal on every Python, under every hash seed, for a program and for a module."""

from __future__ import annotations

import hashlib
import http
import importlib.util
import inspect
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy
import pytest

from marin_pipeline import Chain, Context, step
from marin_pipeline.core.errors import DeclarationError
from marin_pipeline.core.key import SCHEMA, key_of, spec_bytes
from tests.conftest import ROOT
from tests.core.pythons import VERSIONS, printed, python, start

DOCUMENT = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```python\n# example/(\w+\.py)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE))
ROW = re.compile(r"\| `(.+?)` \| `(\{.+\})` \| `([0-9a-f]{64})` \|")
ROWS = [line for line in DOCUMENT.partition("## Test vectors")[2].splitlines() if line.startswith("|")][2:]
VECTORS = [match.groups() for row in ROWS if (match := ROW.fullmatch(row))]


def write_example(folder: Path, end: str = "") -> Path:
    """The project of docs/keys.md, with a program at the end of its steps."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nname = "example"\n')
    (folder / "hello.txt").write_text("hello\n")
    for name in ("recipes.py", "lengths.py"):
        (folder / name).write_text(f"# example/{name}\n{FILES[name]}{end if name == 'recipes.py' else ''}")
    return folder


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    """What the calls of docs/keys.md name: its module, imported from a project that is the current folder."""
    folder = write_example(tmp_path_factory.mktemp("keys") / "example")
    found = importlib.util.spec_from_file_location("recipes", folder / "recipes.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "recipes", module)
        patch.chdir(folder)
        found.loader.exec_module(module)
        yield {**vars(module), "numpy": numpy, "ml_dtypes": ml_dtypes, "http": http}


def holds(names: Mapping[str, Any], call: str, spec: str, key: str) -> bool:
    """Whether a call has the spec and the key that a row of the table says."""
    made = eval(call, dict(names))
    said = hashlib.sha256(spec.encode()).hexdigest()
    return (made.declaration.spec.decode("ascii"), made.key, said) == (spec, key, key)


def test_every_row_of_the_document_is_a_vector() -> None:
    assert len(VECTORS) == len(ROWS) >= 65
    assert len({call for call, _, _ in VECTORS}) == len(VECTORS)
    assert len({key for _, _, key in VECTORS}) >= 60
    assert len([call for call, spec, _ in VECTORS if '"code":{"source":"' in spec]) >= 3


@pytest.mark.parametrize(("call", "spec", "key"), VECTORS, ids=[call for call, _, _ in VECTORS])
def test_the_vectors_of_the_document_are_ours(names: Mapping[str, Any], call: str, spec: str, key: str) -> None:
    assert holds(names, call, spec, key)
    assert json.dumps(json.loads(spec), sort_keys=True, separators=(",", ":")) == spec


def test_a_vector_that_is_altered_anywhere_is_noticed(names: Mapping[str, Any]) -> None:
    for number, (call, spec, key) in enumerate(VECTORS):
        other_digit = "0" if key[-1] != "0" else "1"
        assert not holds(names, call, spec, key[:-1] + other_digit)
        assert not holds(names, call, spec.replace('"schema":1', '"schema":2'), key)
        other = next(other for other, _, theirs in VECTORS[number - 1 :: -1] + VECTORS[number:] if theirs != key)
        assert not holds(names, other, spec, key)


def test_the_digest_of_code_is_composed_as_the_document_says(names: Mapping[str, Any]) -> None:
    def sha256(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    measure = """\
def measure(ctx: Context, text: str, how: Any) -> int:
    from lengths import length
    return length(text)"""
    lines = [
        "marin_pipeline code 1",
        f"recipes:Any {sha256('from typing import Any as Any')}",
        f"recipes:Context {sha256('from marin_pipeline import Context as Context')}",
        f"recipes:measure {sha256(measure)}",
        f"lengths {sha256(chr(10).join(line for line in FILES['lengths.py'].splitlines() if line))}",
    ]
    assert sha256("\n".join(lines)) == eval("measure(text='a')", dict(names)).declaration.code.digest


def test_a_spec_holds_four_entries_and_nothing_else() -> None:
    spec = spec_bytes("p/s", {"version": 3}, {"b": 1, "a": 2.0})
    assert spec == b'{"arguments":{"a":2.0,"b":1},"code":{"version":3},"schema":1,"step":"p/s"}'
    assert SCHEMA == 1
    assert key_of(spec) == hashlib.sha256(spec).hexdigest()


# The same everywhere


def library() -> list[list[str]]:
    """Specs, keys and code digests of some of the library's own steps."""
    from marin_pipeline import Artifact
    from marin_pipeline.models.config import LlamaConfig
    from steps.baselines import baselines
    from steps.tokenize import tokenize
    from steps.train import train

    made = Artifact("0" * 64)
    steps = [train(made, LlamaConfig(512, 64, 2, 4, 128), 2), tokenize(made, made), baselines(made, made)]
    declarations = [step.declaration for step in steps]
    return [[each.spec.decode(), each.key, each.code.digest] for each in declarations if each]


PROGRAM = f"""
{inspect.getsource(library)}

if __name__ == "__main__":
    import http
    import json
    import sys

    import recipes  # this file once more, as a module

    calls = json.load(sys.stdin)
    both = [dict(vars(module), http=http) for module in (sys.modules["__main__"], recipes)]
    print(json.dumps([dict((call, [eval(call, names).key for names in both]) for call in calls), library()]))
"""
GOLDEN = {call: key for call, _, key in VECTORS if "numpy" not in call and "ml_dtypes" not in call}
SEEDS = ("0", "1", "random")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed from a wheel, as pip would."""
    folder = tmp_path_factory.mktemp("wheel")
    for part in ("marin_pipeline", "steps"):
        shutil.copytree(ROOT / part, folder / "source" / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder]
    subprocess.run([*command, folder / "source"], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    installed = folder / "lib" / "site-packages"
    with zipfile.ZipFile(built) as file:
        file.extractall(installed)
    assert not (installed / "pyproject.toml").exists()
    return installed


@pytest.mark.parametrize("version", VERSIONS)
def test_keys_are_equal_everywhere(tmp_path: Path, wheel: Path, version: str) -> None:
    """On each Python: three hash seeds, from a checkout and from a wheel, as the program and as an imported module.

    So are those of the library's own steps, with the digests of their code.
    """
    assert len(GOLDEN) >= 60
    ours = library()
    assert len(ours) == 3
    example = write_example(tmp_path / "example", PROGRAM)
    combinations = [(place, seed) for place in (ROOT, wheel) for seed in SEEDS]
    started = [
        start(python(version), "recipes.py", path=(place,), folder=example, seed=seed) for place, seed in combinations
    ]
    for combination, process in zip(combinations, started, strict=True):
        found = json.loads(printed(process, json.dumps(list(GOLDEN))))
        assert found == [{call: [key, key] for call, key in GOLDEN.items()}, ours], combination


# Chains


def constant(arguments: Any) -> Chain:
    def recipe(steps: int) -> list[dict[str, Any]]:
        return [{"from": 0, "to": steps, "rate": arguments["rate"]}]

    return Chain(initial={"seed": arguments["seed"]}, step=arguments["steps"], recipe=recipe)


@step(version=1, chain=constant)
def train(ctx: Context, steps: int, rate: float = 0.1, seed: int = 0, note: str = "") -> int:
    return steps


def unkeyable(arguments: Any) -> Chain:
    return Chain(initial=None, step=1, recipe=lambda steps: {"schedule": unkeyable})


def fractional(arguments: Any) -> Chain:
    return Chain(initial=None, step=arguments["steps"] / 2, recipe=lambda steps: [])


def test_a_longer_run_passes_through_the_shorter_one() -> None:
    long, short = train(steps=200).declaration, train(steps=100, note="shorter").declaration
    assert long is not None
    assert short is not None
    assert long.key != short.key
    assert key_of(long.spec_at(100)) == short.key == key_of(short.spec)
    other = train(steps=200, rate=0.2).declaration
    assert other is not None
    assert other.spec_at(100) != short.spec


def plain(ctx: Context, steps: int = 3) -> int:
    return 1


@pytest.mark.parametrize(
    ("chain", "said"),
    [
        (
            unkeyable,
            r"step plain \(test_key.py:\d+\): recipe\[schedule\]: the function unkeyable has no stable identity",
        ),
        (fractional, r"step plain \(test_key.py:\d+\): the chain's step is 1.5; it must be an int from 0 on"),
    ],
)
def test_a_chain_that_cannot_be_keyed_is_refused(chain: Callable[..., Chain], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        step(version=1, chain=chain)(plain)()
