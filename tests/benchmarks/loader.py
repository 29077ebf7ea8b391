"""How fast tokens are made, kept, read and loaded: the token store beside Megatron's `.bin` and `.idx` and Levanter's
cache, tokenization beside the tokenizer alone, and the loader beside what a training run needs.

    python tests/benchmarks/loader.py --json           the last line is one JSON object
    python tests/benchmarks/loader.py --only read --rounds 1
    python tests/benchmarks/loader.py --levanter PYTHON     PYTHON is an interpreter that has levanter

Build is token ids in memory, a batch at a time, to files: `TokenWriter`, with digests and checksums, beside plain numpy
that writes the two files of an indexed dataset. Read is 4,096 tokens from anywhere, one after another and 64 at once,
beside a copy out of `numpy.memmap` and, where it is given, `TreeCache.get_flat_field_batch`. Tokenize is a Parquet part
of documents to a part of a token store, beside bare `encode_batch_fast` on texts that are in memory already, in batches
of the same size; and again with one document alone. Load is the loader with its defaults: batches of 16 x 4,096 tokens,
and of the quick start's 8 x 128, from the store as it lies here, and with 50 ms added to each read (loading.py); the
quick start's need is what a short run of it says.
Each side of a round is a process of its own, whose clock starts when its inputs and libraries are loaded; they take
turns, and a ratio is the median of the rounds' ratios. All files lie in memory, so that no disk is measured.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import shutil
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from executor import measured

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

import loading  # noqa: E402 - needs the line above

MEMORY = "/dev/shm"
MB = 1e6
ROUNDS = 3
TOKENS, DOCUMENT_TOKENS, BATCH_TOKENS = 2**28, 1024, 2**18
"""512 MiB of ids: more than the token store's cache."""
READS, READ_TOKENS, READS_AT_ONCE = 8192, 4096, 64
TEXT_BYTES, TRAINING_BYTES, VOCABULARY = 24_000_000, 2_000_000, 16_384

OF_BARE = 0.9
"""The target: MB per CPU second, of what `encode_batch_fast` alone has."""
FAR_TOKENS = 200_000
"""The target: tokens a second with 50 ms added to each read."""
TIMES_THE_NEED = 20
"""The target: tokens a second as often as the quick start reads them."""

Figures = dict[str, Any]


# The sides, each in a process of its own -----------------------------------------------------------------------------


def token_batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Token ids, the same in each batch, and ends of documents of about a thousand tokens."""
    ids = (np.arange(BATCH_TOKENS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(50)).astype(np.uint16)
    ends = np.arange(1, BATCH_TOKENS // DOCUMENT_TOKENS + 1) * DOCUMENT_TOKENS
    for _ in range(TOKENS // BATCH_TOKENS):
        yield ids, ends


def build_ours(folder: Path) -> Callable[[], Figures]:
    from marin_pipeline.data.token_writer import TokenWriter

    writer = TokenWriter(folder / "part", 2**16)

    def build() -> Figures:
        for tokens, ends in token_batches():
            writer.append(tokens, ends)
        return {"bytes": 2 * writer.finish(0).tokens}

    return build


def build_plain(folder: Path) -> Callable[[], Figures]:
    from marin_pipeline.data.megatron import HEADER, MAGIC

    folder.mkdir()

    def build() -> Figures:
        offsets, written = [np.zeros(1, np.int64)], 0
        with open(folder / "tokens.bin", "wb") as file:
            for tokens, ends in token_batches():
                file.write(tokens.tobytes())
                offsets.append(ends + written)
                written += len(tokens)
        starts = np.concatenate(offsets)
        lengths = np.diff(starts).astype("<i4")
        with open(folder / "tokens.idx", "wb") as file:
            file.write(HEADER.pack(MAGIC, 1, 8, len(lengths), len(lengths) + 1))
            for values in (lengths, 2 * starts[:-1], np.arange(len(lengths) + 1)):
                file.write(values.tobytes())
        return {"bytes": 2 * written}

    return build


def read_starts() -> np.ndarray:
    from marin_pipeline.data.mixing import mix64

    return (mix64(np.arange(READS, dtype=np.uint64)) % np.uint64(TOKENS - READ_TOKENS)).astype(np.int64)


def opened(folder: Path) -> Any:
    """The artifact of a store that this benchmark wrote."""
    from marin_pipeline import local_artifact
    from marin_pipeline.data.schema import Tokens
    from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger

    ledger = Ledger.from_json((folder / LEDGER_FILE).read_text())
    return local_artifact(folder, Tokens(LEDGER_FILE, ledger.tokens, ledger.documents, ledger.bytes, 2**16, 0))


def read_ours(folder: Path, at_once: int = 1) -> Callable[[], Figures]:
    from marin_pipeline.data.token_store import TokenStore

    store = TokenStore(opened(folder))
    starts = read_starts()
    store.read(0, 1)

    def read() -> Figures:
        total = 0
        for place in range(0, READS, at_once):
            total += int(store.read_many(starts[place : place + at_once], READ_TOKENS)[:, 7].sum())
        return {"reads": READS, "total": total}

    return read


def read_many_ours(folder: Path) -> Callable[[], Figures]:
    return read_ours(folder, READS_AT_ONCE)


def read_plain(folder: Path) -> Callable[[], Figures]:
    tokens = np.memmap(folder / "tokens.bin", "<u2", "r")
    starts = read_starts()

    def read() -> Figures:
        total = sum(int(tokens[start : start + READ_TOKENS].astype(np.int32)[7]) for start in starts.tolist())
        return {"reads": READS, "total": total}

    return read


def tokenize_ours(folder: Path) -> Callable[[], Figures]:
    import tensorstore  # noqa: F401 - loaded before the clock starts

    from marin_pipeline.data import parts, token_store, tokenizer  # noqa: F401
    from steps.tokenize import tokenize_part

    shard: Any = SimpleNamespace(out=folder / "tokens", log=print)
    files: Any = (folder / "documents.parquet", folder / "tokenizer.json")

    def run() -> Figures:
        part = tokenize_part(shard, *files, vocabulary=VOCABULARY, end_of_document=0, maximum_tokens=None)
        return {"bytes": part.bytes, "tokens": part.tokens - part.documents}

    return run


def tokenize_bare(folder: Path) -> Callable[[], Figures]:
    from marin_pipeline.data.parts import batches, read_part
    from marin_pipeline.data.tokenizer import BATCH_BYTES, load_tokenizer

    loaded = load_tokenizer(folder / "tokenizer.json")
    texts = [
        [document.text for document in batch] for batch in batches(read_part(folder / "documents.parquet"), BATCH_BYTES)
    ]

    def run() -> Figures:
        size = tokens = 0
        for batch in texts:
            tokens += sum(len(encoding) for encoding in loaded.encode_batch_fast(batch, add_special_tokens=False))
            size += sum(map(len, batch))
        return {"bytes": size, "tokens": tokens}

    return run


def load(shape: loading.Shape, far: bool, workers: int = 2) -> Callable[[Path], Callable[[], Figures]]:
    def side(folder: Path) -> Callable[[], Figures]:
        store = (loading.FarStore if far else loading.TokenStore)(opened(folder))
        return loading.loads(store, shape, shape.far_batches if far else shape.near_batches, workers)

    return side


SIDES: dict[str, Callable[[Path], Callable[[], Figures]]] = {
    "build_ours": build_ours,
    "build_plain": build_plain,
    "read_ours": read_ours,
    "read_many_ours": read_many_ours,
    "read_plain": read_plain,
    "tokenize_ours": tokenize_ours,
    "tokenize_bare": tokenize_bare,
    "load_near": load(loading.LARGE, far=False),
    "load_far": load(loading.LARGE, far=True),
    "load_small_near": load(loading.SMALL, far=False),
    "load_small_far": load(loading.SMALL, far=True),
    "load_small_far_many_workers": load(loading.SMALL, far=True, workers=loading.MANY_WORKERS),
}


def side(name: str, folder: str) -> None:
    """Measure one side, and print what it took."""
    call = SIDES[name](Path(folder))
    started, before = time.monotonic(), time.process_time()
    found = call()
    seconds, cpu = time.monotonic() - started, time.process_time() - before
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps({**found, "seconds": seconds, "cpu_seconds": cpu, "rss_mib": int(peak.split()[1]) / 1024}))


def one_side(name: str, folder: Path) -> Figures:
    """One side of a round, in a process of its own."""
    _, printed = measured([str(HERE / "loader.py"), "--side", name, str(folder)], folder.parent)
    found = json.loads(printed.splitlines()[-1])
    print(f"{name}: {found}", file=sys.stderr, flush=True)
    return found


def in_turns(
    sides: Mapping[str, Path | Callable[[], Figures]], rounds: int, clean: Callable[[], None] = lambda: None
) -> dict[str, list[Figures]]:
    """Rounds of the sides, each of which has a turn to be first; they must find the same."""
    runs: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            side = sides[name]
            runs[name].append(one_side(name, side) if isinstance(side, Path) else side())
            clean()
        same = {
            json.dumps({key: run[-1].get(key) for key in ("bytes", "tokens", "reads", "total")})
            for run in runs.values()
        }
        if len(same) != 1:
            raise SystemExit(f"the sides found different things: {same}")
    return runs


def median(runs: list[Figures], amount: str, time_of: str, unit: float = 1.0) -> float:
    """The median of an amount a second, in units."""
    return statistics.median(run[amount] / unit / run[time_of] for run in runs)


def memory(runs: list[Figures]) -> int:
    return round(max(run["rss_mib"] for run in runs))


# The parts -----------------------------------------------------------------------------------------------------------


def build(folder: Path, parsed: argparse.Namespace) -> Figures:
    """Token ids to files."""

    def clean() -> None:
        for name in ("ours", "plain"):
            shutil.rmtree(folder / name, ignore_errors=True)

    runs = in_turns({"build_ours": folder / "ours", "build_plain": folder / "plain"}, parsed.rounds, clean)
    ours, plain = runs["build_ours"], runs["build_plain"]
    return {
        "build_mb_per_second": round(median(ours, "bytes", "seconds", MB), 1),
        "build_plain_mb_per_second": round(median(plain, "bytes", "seconds", MB), 1),
        "build_mb_per_cpu_second": round(median(ours, "bytes", "cpu_seconds", MB), 1),
        "build_rss_mib": memory(ours),
        "build_plain_rss_mib": memory(plain),
    }


def write_store(folder: Path) -> None:
    """A store of four parts."""
    from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger
    from marin_pipeline.data.token_writer import TokenWriter

    batches, parts = token_batches(), []
    for number in range(4):
        writer = TokenWriter(folder / f"part-{number}", 2**16)
        for tokens, ends in itertools.islice(batches, TOKENS // BATCH_TOKENS // 4):
            writer.append(tokens, ends)
        parts.append(writer.finish(0))
    (folder / LEDGER_FILE).write_text(Ledger(tuple(parts), "uint16", 2**16, 0, "0" * 64).to_json())


def read(folder: Path, parsed: argparse.Namespace) -> Figures:
    """Random reads of a store of four parts, of one `.bin`, and of Levanter's cache."""
    ours, plain, cache = folder / "ours", folder / "plain", folder / "levanter"
    write_store(ours)
    build_plain(plain)()
    sides: dict[str, Path | Callable[[], Figures]] = {
        "read_ours": ours,
        "read_many_ours": ours,
        "read_plain": plain,
    }
    if parsed.levanter:
        theirs = functools.partial(loading.levanter, parsed.levanter, cache, read_starts(), READ_TOKENS)
        theirs(1, str(plain / "tokens.bin"))
        sides["read_levanter"] = functools.partial(theirs, 1)
        sides["read_many_levanter"] = functools.partial(theirs, READS_AT_ONCE)
    runs = in_turns(sides, parsed.rounds)
    figures: Figures = {
        "reads_per_second": round(median(runs["read_ours"], "reads", "seconds")),
        "reads_at_once_per_second": round(median(runs["read_many_ours"], "reads", "seconds")),
        "plain_reads_per_second": round(median(runs["read_plain"], "reads", "seconds")),
        "reads_rss_mib": memory(runs["read_ours"] + runs["read_many_ours"]),
        "plain_reads_rss_mib": memory(runs["read_plain"]),
    }
    if parsed.levanter:
        one, many = runs["read_levanter"], runs["read_many_levanter"]
        figures |= {
            "levanter_reads_per_second": round(median(one, "reads", "seconds")),
            "levanter_reads_at_once_per_second": round(median(many, "reads", "seconds")),
            "levanter_reads_rss_mib": memory(one + many),
        }
    return figures


def load_all(folder: Path, parsed: argparse.Namespace) -> Figures:
    """The loader: tokens a second near and far, and how often that is what the quick start needs."""
    store = folder / "ours"
    write_store(store)
    names = [name for name in SIDES if name.startswith("load_")]
    runs = {name: in_turns({name: store}, parsed.rounds)[name] for name in names}
    figures: Figures = {f"{name}_tokens_per_second": round(median(runs[name], "tokens", "seconds")) for name in names}
    figures["load_rss_mib"] = memory([run for name in names for run in runs[name]])
    consumed = parsed.consumed or loading.quickstart_rate(folder)
    figures["quickstart_tokens_per_second"] = round(consumed)
    figures["load_times_quickstart"] = round(figures["load_small_near_tokens_per_second"] / consumed, 1)
    return figures


def corpus(size: int) -> list[str]:
    """About `size` bytes of ASCII source text of the installed packages, a file a document."""
    texts: list[str] = []
    held = 0
    for path in sorted(Path(sysconfig.get_path("purelib")).rglob("*.py")):
        if held >= size:
            break
        content = path.read_bytes()
        if content.isascii():
            texts.append(content.decode())
            held += len(content)
    return texts


def tokenize(folder: Path, parsed: argparse.Namespace) -> Figures:
    """Documents to tokens: many, and then one that is as long as all of them."""
    from marin_pipeline.data.document import make_document, sort_key
    from marin_pipeline.data.tokenizer import train_bpe
    from marin_pipeline.data.writers import PartWriter

    texts = corpus(TEXT_BYTES)
    figures: Figures = {}
    for kind, documents in (("many", texts), ("long", ["\n".join(texts)])):
        here = folder / kind
        here.mkdir()
        if kind == "many":
            train_bpe(texts[:: TEXT_BYTES // TRAINING_BYTES], VOCABULARY).save(str(here / "tokenizer.json"))
        else:
            shutil.copy(folder / "many" / "tokenizer.json", here)
        with PartWriter(here / "documents.parquet") as writer:
            for document in sorted(
                (make_document(text, "s", str(n)) for n, text in enumerate(documents)), key=sort_key
            ):
                writer.add(document)
        runs = in_turns(
            {"tokenize_ours": here, "tokenize_bare": here},
            parsed.rounds if kind == "many" else 1,
            lambda here=here: shutil.rmtree(here / "tokens", ignore_errors=True),
        )
        ours, bare = runs["tokenize_ours"], runs["tokenize_bare"]
        prefix = "tokenize" if kind == "many" else "tokenize_long"
        figures |= {
            f"{prefix}_mb_per_cpu_second": round(median(ours, "bytes", "cpu_seconds", MB), 2),
            f"{prefix}_bare_mb_per_cpu_second": round(median(bare, "bytes", "cpu_seconds", MB), 2),
            f"{prefix}_of_bare": round(
                statistics.median(b["cpu_seconds"] / a["cpu_seconds"] for a, b in zip(ours, bare, strict=True)), 3
            ),
            f"{prefix}_mb_per_second": round(median(ours, "bytes", "seconds", MB), 2),
            f"{prefix}_rss_mib": memory(ours),
            f"{prefix}_bare_rss_mib": memory(bare),
        }
    return figures


PARTS: dict[str, Callable[[Path, argparse.Namespace], Figures]] = {
    "build": build,
    "read": read,
    "tokenize": tokenize,
    "load": load_all,
}
TARGETS: dict[str, float] = {
    "tokenize_of_bare": OF_BARE,
    "load_far_tokens_per_second": FAR_TOKENS,
    "load_times_quickstart": TIMES_THE_NEED,
}
"""The least that each should be."""


def held_against_targets(figures: Figures) -> dict[str, Figures]:
    """Each target: what was measured, and whether it is met."""
    return {
        name: {"measured": figures[name], "at_least": least, "ok": figures[name] >= least}
        for name, least in TARGETS.items()
        if name in figures
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="this part only; may be repeated")
    parser.add_argument("--levanter", metavar="PYTHON", help="an interpreter that has levanter; else it is left out")
    parser.add_argument("--consumed", type=float, help="tokens a second of the quick start (default: it is run)")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", help="where all files lie (default: in memory, where there is /dev/shm)")
    parser.add_argument("--side", nargs=2, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.side:
        side(*parsed.side)
        return
    figures: Figures = {"python": sys.version.split()[0], "cpus": len(os.sched_getaffinity(0))}
    above = parsed.folder or (MEMORY if os.access(MEMORY, os.W_OK) else None)
    for part in parsed.only or PARTS:
        with tempfile.TemporaryDirectory(prefix="marin-benchmark-", dir=above) as name:
            figures |= PARTS[part](Path(name), parsed)
    figures["targets"] = held_against_targets(figures)
    if parsed.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if name != "targets":
            print(f"{name:<42}{value:>12}")
    missed = [name for name, each in figures["targets"].items() if not each["ok"]]
    print(f"targets: {len(figures['targets']) - len(missed)} met", *(f"missed: {name}" for name in missed), sep="\n")


if __name__ == "__main__":
    main()
