"""How fast tokens are made, kept and read: the token store beside Megatron's `.bin` and `.idx`, tokenization beside the
tokenizer alone.

    python tests/benchmarks/loader.py --json           the last line is one JSON object
    python tests/benchmarks/loader.py --only read --rounds 1

Build is token ids in memory, a batch at a time, to files: `TokenWriter`, with digests and checksums, beside plain numpy
that writes the two files of an indexed dataset. Read is 4,096 tokens from anywhere, one after another and 64 at once,
beside a copy out of `numpy.memmap`. Tokenize is a Parquet part of documents to a part of a token store, beside bare
`encode_batch_fast` on texts that are in memory already, in batches of the same size; and again with one document alone.
Each side of a round is a process of its own, whose clock starts when its inputs and libraries are loaded; they take
turns, and a ratio is the median of the rounds' ratios. All files lie in memory, so that no disk is measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from executor import measured

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

MEMORY = "/dev/shm"
MB = 1e6
ROUNDS = 3
TOKENS, DOCUMENT_TOKENS, BATCH_TOKENS = 2**28, 1024, 2**18
"""512 MiB of ids: more than the token store's cache."""
READS, READ_TOKENS, READS_AT_ONCE = 8192, 4096, 64
TEXT_BYTES, TRAINING_BYTES, VOCABULARY = 24_000_000, 2_000_000, 16_384

OF_BARE = 0.9
"""The target: MB per CPU second, of what `encode_batch_fast` alone has."""

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


def read_ours(folder: Path, at_once: int = 1) -> Callable[[], Figures]:
    from marin_pipeline import local_artifact
    from marin_pipeline.data.schema import Tokens
    from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger
    from marin_pipeline.data.token_store import TokenStore

    ledger = Ledger.from_json((folder / LEDGER_FILE).read_text())
    store = TokenStore(
        local_artifact(folder, Tokens(LEDGER_FILE, ledger.tokens, ledger.documents, ledger.bytes, 2**16, 0))
    )
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


SIDES: dict[str, Callable[[Path], Callable[[], Figures]]] = {
    "build_ours": build_ours,
    "build_plain": build_plain,
    "read_ours": read_ours,
    "read_many_ours": read_many_ours,
    "read_plain": read_plain,
    "tokenize_ours": tokenize_ours,
    "tokenize_bare": tokenize_bare,
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


def in_turns(sides: dict[str, Path], rounds: int, clean: Callable[[], None] = lambda: None) -> dict[str, list[Figures]]:
    """Rounds of the sides, each of which has a turn to be first; they must find the same."""
    runs: dict[str, list[Figures]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            runs[name].append(one_side(name, sides[name]))
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


def build(folder: Path, rounds: int) -> Figures:
    """Token ids to files."""

    def clean() -> None:
        for name in ("ours", "plain"):
            shutil.rmtree(folder / name, ignore_errors=True)

    runs = in_turns({"build_ours": folder / "ours", "build_plain": folder / "plain"}, rounds, clean)
    ours, plain = runs["build_ours"], runs["build_plain"]
    return {
        "build_mb_per_second": round(median(ours, "bytes", "seconds", MB), 1),
        "build_plain_mb_per_second": round(median(plain, "bytes", "seconds", MB), 1),
        "build_mb_per_cpu_second": round(median(ours, "bytes", "cpu_seconds", MB), 1),
        "build_rss_mib": memory(ours),
        "build_plain_rss_mib": memory(plain),
    }


def read(folder: Path, rounds: int) -> Figures:
    """Random reads of a store of four parts, and of one `.bin`."""
    from marin_pipeline.data.token_ledger import LEDGER_FILE, Ledger
    from marin_pipeline.data.token_writer import TokenWriter

    ours, plain = folder / "ours", folder / "plain"
    batches, parts = token_batches(), []
    for number in range(4):
        writer = TokenWriter(ours / f"part-{number}", 2**16)
        for tokens, ends in itertools.islice(batches, TOKENS // BATCH_TOKENS // 4):
            writer.append(tokens, ends)
        parts.append(writer.finish(0))
    (ours / LEDGER_FILE).write_text(Ledger(tuple(parts), "uint16", 2**16, 0, "0" * 64).to_json())
    build_plain(plain)()
    runs = in_turns({"read_ours": ours, "read_many_ours": ours, "read_plain": plain}, rounds)
    return {
        "reads_per_second": round(median(runs["read_ours"], "reads", "seconds")),
        "reads_at_once_per_second": round(median(runs["read_many_ours"], "reads", "seconds")),
        "plain_reads_per_second": round(median(runs["read_plain"], "reads", "seconds")),
        "reads_rss_mib": memory(runs["read_ours"] + runs["read_many_ours"]),
        "plain_reads_rss_mib": memory(runs["read_plain"]),
    }


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


def tokenize(folder: Path, rounds: int) -> Figures:
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
            rounds if kind == "many" else 1,
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


PARTS: dict[str, Callable[[Path, int], Figures]] = {"build": build, "read": read, "tokenize": tokenize}


def held_against_targets(figures: Figures) -> dict[str, Figures]:
    """Each target: what was measured, and whether it is met."""
    found: dict[str, Figures] = {}
    if "tokenize_of_bare" in figures:
        value = figures["tokenize_of_bare"]
        found["tokenize_of_bare"] = {"measured": value, "at_least": OF_BARE, "ok": value >= OF_BARE}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="this part only; may be repeated")
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
            figures |= PARTS[part](Path(name), parsed.rounds)
    figures["targets"] = held_against_targets(figures)
    if parsed.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        if name != "targets":
            print(f"{name:<32}{value:>12}")
    missed = [name for name, each in figures["targets"].items() if not each["ok"]]
    print(f"targets: {len(figures['targets']) - len(missed)} met", *(f"missed: {name}" for name in missed), sep="\n")


if __name__ == "__main__":
    main()
