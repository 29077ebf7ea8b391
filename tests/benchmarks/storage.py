"""How fast outputs go into a bucket and come out of it, beside gcsfs and s3fs alone; and how long a plan takes there.

    python tests/benchmarks/storage.py --json          the last line is one JSON object
    python tests/benchmarks/storage.py --only gs --rounds 1

Commit is `build_manifest` of a folder: each file read once, hashed (sha256 and the store's checksum), uploaded, listed
and compared. Fetch is `ObjectStore.fetch` into an empty cache: local files whose sha256 was found right. Beside them
the same files by `put` and `get` of gcsfs or s3fs, which hash nothing. Servers run on the loopback (fake-gcs-server,
SeaweedFS), and all files lie in memory, so that no disk is measured. Each side of a round is a process of its own,
whose clock starts when its client has answered once; they take turns, and a ratio is the median of the rounds' ratios.

fake-gcs-server hashes all that it has of an object again at each part of an upload: of a large file in parts of 50 MiB,
as gcsfs sends it, that takes most of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from executor import measured

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from tests import servers  # noqa: E402 - found by the line above

MEMORY = "/dev/shm"
BUCKET = "benchmark"
MIB = 2**20
LARGE_BYTES, SMALL_FILES, SMALL_BYTES = 1024 * MIB, 2000, 4096
ROUNDS = 3
PLAN_ROUNDS = 5
OUT = "steps/benchmark/0123456789abcdef/attempts/1/out"
STEPS = 1000
"""Of layered.py."""

SHARE, RSS_MIB, PLAN_SECONDS = 0.8, 300.0, 3.0
"""The targets: the speed of the client alone, at least; memory and time, at most."""

Figures = dict[str, Any]


# One side, in a process of its own -----------------------------------------------------------------------------------


def ours(verb: str, prefix: str, source: Path, scratch: Path) -> Callable[[], None]:
    """What is measured of ours, ready to go."""
    from marin_pipeline.store.manifest import Manifest, build_manifest
    from marin_pipeline.store.objects import Wanted, open_objects

    objects = open_objects(prefix)
    objects.is_there()
    kept = scratch / "manifest.json"

    def commit() -> None:
        kept.write_bytes(build_manifest(objects, source, OUT, {}).dumps())

    def fetch() -> None:
        found = objects.fetch(wanted)
        if sum(path.stat().st_size for path in found) != sum(each.size for each in wanted):
            raise SystemExit("ours: not all bytes were fetched")

    if verb == "commit":
        return commit
    entries = Manifest.loads(kept.read_bytes(), "the manifest").entries
    wanted = [Wanted(entry.object, entry.size, entry.sha256) for entry in entries]
    return fetch


def raw(verb: str, prefix: str, source: Path, scratch: Path) -> Callable[[], None]:
    """The same by the client alone."""
    scheme, _, folder = prefix.partition("://")
    if scheme == "gs":
        from gcsfs.core import GCSFileSystem

        client: Any = GCSFileSystem(
            endpoint_url=os.environ["STORAGE_EMULATOR_HOST"], token="anon", use_listings_cache=False
        )
    else:
        from s3fs import S3FileSystem

        client = S3FileSystem(
            key=os.environ["AWS_ACCESS_KEY_ID"],
            secret=os.environ["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=os.environ["AWS_ENDPOINT_URL"],
            client_kwargs={"region_name": os.environ["AWS_REGION"]},
            use_listings_cache=False,
        )
    client.exists(f"{folder}/nothing")
    names = sorted(os.listdir(source))
    there = [f"{folder}/{name}" for name in names]
    if verb == "commit":
        here = [str(source / name) for name in names]
        return lambda: client.put(here, there)
    here = [str(scratch / "got" / name) for name in names]

    # By default gcsfs first looks for each object in a listing, which takes most of the time where there are many.
    plainly = {"concurrency": 1} if scheme == "gs" and len(names) > 1 else {}

    def fetch() -> None:
        client.get(there, here, **plainly)
        if any(os.path.getsize(file) != (source / name).stat().st_size for file, name in zip(here, names, strict=True)):
            raise SystemExit("raw: not all bytes were fetched")

    return fetch


def side(who: str, verb: str, prefix: str, source: str, scratch: str) -> None:
    """Measure one side, and print what it took."""
    call = (ours if who == "ours" else raw)(verb, prefix, Path(source), Path(scratch))
    started, before = time.monotonic(), time.process_time()
    call()
    seconds, cpu = time.monotonic() - started, time.process_time() - before
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "rss_mib": int(peak.split()[1]) / 1024}))
    sys.stdout.flush()
    os._exit(0)  # what the clients do when they end is not measured


# The parts -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def gs(folder: Path) -> Iterator[dict[str, str]]:
    """fake-gcs-server with a bucket; the environment of its clients."""
    with servers.fake_gcs(folder) as server:
        servers.make_gcs_bucket(server, BUCKET)
        yield {"STORAGE_EMULATOR_HOST": server.url, "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


@contextlib.contextmanager
def s3(folder: Path) -> Iterator[dict[str, str]]:
    """SeaweedFS with a bucket; the environment of its clients."""
    with servers.seaweedfs(folder) as server:
        servers.make_s3_bucket(server, BUCKET)
        yield {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": server.url}


STORES = {"gs": gs, "s3": s3}


def sources(folder: Path, large: int) -> dict[str, Path]:
    """What is written: one large file, and many small ones."""
    found = {"large": folder / "large", "small": folder / "small"}
    for each in found.values():
        each.mkdir()
    with (found["large"] / "file").open("wb") as file:
        for start in range(0, large, 16 * MIB):
            file.write(os.urandom(min(16 * MIB, large - start)))
    for number in range(SMALL_FILES):
        (found["small"] / f"{number:05d}").write_bytes(os.urandom(SMALL_BYTES))
    return found


def transfers(store: str, folder: Path, large: int, rounds: int) -> Figures:
    """Commit and fetch of both kinds of files, ours and the client's in turns."""
    written = sources(folder, large)
    runs: dict[tuple[str, str, str], list[Figures]] = {}
    for number in range(rounds):
        for size, source in written.items():
            for who in ("ours", "raw") if number % 2 == 0 else ("raw", "ours"):
                for verb, found in one_side(store, who, size, source, folder / f"{number}-{size}-{who}").items():
                    runs.setdefault((verb, size, who), []).append(found)
                    print(f"{store} {size} {verb} {who}: {found}", file=sys.stderr, flush=True)
    figures: Figures = {}
    sizes = {"large": large, "small": SMALL_FILES * SMALL_BYTES}
    for verb, size in ((verb, size) for verb in ("commit", "fetch") for size in sizes):
        mine, theirs = runs[verb, size, "ours"], runs[verb, size, "raw"]
        figures[f"{store}_{verb}_{size}"] = {
            "mb_per_second": rate(sizes[size], mine),
            "raw_mb_per_second": rate(sizes[size], theirs),
            "of_raw": round(
                statistics.median(b["seconds"] / a["seconds"] for a, b in zip(mine, theirs, strict=True)), 2
            ),
            "cpu_seconds": round(statistics.median(run["cpu_seconds"] for run in mine), 2),
            "raw_cpu_seconds": round(statistics.median(run["cpu_seconds"] for run in theirs), 2),
            "rss_mib": round(max(run["rss_mib"] for run in mine)),
            "raw_rss_mib": round(max(run["rss_mib"] for run in theirs)),
        }
        if size == "small":
            figures[f"{store}_{verb}_{size}"]["files_per_second"] = round(
                statistics.median(SMALL_FILES / run["seconds"] for run in mine)
            )
    return figures


def one_side(store: str, who: str, size: str, source: Path, folder: Path) -> dict[str, Figures]:
    """Commit and fetch by one side, on a new server."""
    folder.mkdir()
    (folder / "server").mkdir()
    prefix = f"{store}://{BUCKET}/{who}"
    found: dict[str, Figures] = {}
    with STORES[store](folder / "server") as environment, environ({**environment, "MARIN_CACHE": f"{folder}/cache"}):
        for verb in ("commit", "fetch"):
            program = [str(HERE / "storage.py"), "--side", who, verb, prefix, str(source), str(folder)]
            _, printed = measured(program, folder)
            found[verb] = {name: round(value, 3) for name, value in json.loads(printed.splitlines()[-1]).items()}
    shutil.rmtree(folder)
    return found


@contextlib.contextmanager
def environ(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def rate(size: int, runs: Sequence[Figures]) -> float:
    """Median of 10^6 bytes a second."""
    return round(statistics.median(size / run["seconds"] / 1e6 for run in runs), 1)


def planning(folder: Path) -> Figures:
    """`plan` of 1,000 steps whose outputs lie in a bucket: a local store's objects, copied there."""
    from marin_pipeline.store.manifest import files_below
    from marin_pipeline.store.objects import FileToPublish, open_objects

    measured([str(HERE / "layered.py"), "--prefix", str(folder / "store"), "-q"], folder)
    program = [str(HERE / "layered.py"), "plan", "--json", "--prefix", f"gs://{BUCKET}/layered"]
    with gs(folder / "server") as environment, environ(environment):
        objects = open_objects(f"gs://{BUCKET}/layered")
        for above in sorted(path.name for path in (folder / "store").iterdir()):
            objects.publish(above, [FileToPublish(*each) for each in files_below(folder / "store" / above)])
        runs: list[Figures] = []
        for _ in range(PLAN_ROUNDS):
            cost, printed = measured(program, folder)
            found = [json.loads(line)["status"] for line in printed.splitlines()]
            if found != ["cached"] * STEPS:
                raise SystemExit(f"the plan has {len(found)} steps, {found.count('cached')} of them cached")
            runs.append(cost)
    return {
        "plan_seconds": round(statistics.median(run["seconds"] for run in runs), 3),
        "plan_cpu_seconds": round(statistics.median(run["cpu_seconds"] for run in runs), 3),
        "plan_rss_mib": round(max(run["rss_mib"] for run in runs)),
        "start_seconds": round(statistics.median(measured(["-c", "pass"], folder)[0]["seconds"] for _ in range(5)), 3),
    }


def held_against_targets(figures: Mapping[str, Any]) -> dict[str, Figures]:
    """Each target: what was measured, and whether it is met."""
    found: dict[str, Figures] = {}
    for name, value in figures.items():
        if isinstance(value, dict) and "of_raw" in value:
            found[f"{name}_of_raw"] = {"measured": value["of_raw"], "at_least": SHARE, "ok": value["of_raw"] >= SHARE}
            found[f"{name}_rss_mib"] = {
                "measured": value["rss_mib"],
                "at_most": RSS_MIB,
                "ok": value["rss_mib"] < RSS_MIB,
            }
    for name, limit in (("plan_seconds", PLAN_SECONDS), ("plan_rss_mib", RSS_MIB)):
        if name in figures:
            found[name] = {"measured": figures[name], "at_most": limit, "ok": figures[name] <= limit}
    return found


def show(figures: Mapping[str, Any]) -> None:
    """The figures as a table."""
    print(f"{'':<18}{'MB/s':>9}{'alone':>9}{'ratio':>8}{'CPU s':>8}{'alone':>8}{'MiB':>7}{'alone':>7}")
    for name, value in figures.items():
        if isinstance(value, dict) and "of_raw" in value:
            print(
                f"{name:<18}{value['mb_per_second']:>9.1f}{value['raw_mb_per_second']:>9.1f}{value['of_raw']:>8.2f}"
                f"{value['cpu_seconds']:>8.2f}{value['raw_cpu_seconds']:>8.2f}"
                f"{value['rss_mib']:>7}{value['raw_rss_mib']:>7}"
            )
    for name, value in figures.items():
        if name.startswith("plan") or name == "start_seconds":
            print(f"{name:<18}{value:>9}")
    missed = [name for name, each in figures["targets"].items() if not each["ok"]]
    print(f"targets: {len(figures['targets']) - len(missed)} met", *(f"missed: {name}" for name in missed), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", action="append", choices=(*STORES, "plan"), help="this part only; may be repeated")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--large", type=int, default=LARGE_BYTES // MIB, metavar="MIB", help="size of the large file")
    parser.add_argument("--folder", help="where all files lie (default: in memory, where there is /dev/shm)")
    parser.add_argument("--side", nargs=5, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    if parsed.side:
        side(*parsed.side)
    figures: Figures = {"python": sys.version.split()[0], "cpus": len(os.sched_getaffinity(0))}
    above = parsed.folder or (MEMORY if os.access(MEMORY, os.W_OK) else None)
    for part in parsed.only or (*STORES, "plan"):
        with tempfile.TemporaryDirectory(prefix="marin-benchmark-", dir=above) as name:
            folder = Path(name)
            figures |= (
                planning(folder) if part == "plan" else transfers(part, folder, parsed.large * MIB, parsed.rounds)
            )
    figures["targets"] = held_against_targets(figures)
    if parsed.json:
        print(json.dumps(figures))
    else:
        show(figures)


if __name__ == "__main__":
    main()
