"""The audit passes the loader for any hosts, workers and interruptions, and catches the defects that are planted."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_pipeline import load, run
from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data.__main__ import main
from marin_pipeline.data.audit import AuditReport, audit, stops
from marin_pipeline.data.audit_command import default_hosts, joined_counts
from marin_pipeline.data.loader import Loaded, Loader
from marin_pipeline.data.order import Batch, TrainingOrder
from marin_pipeline.data.read_ledger import ReadLedger
from marin_pipeline.data.run_data import RunData
from marin_pipeline.data.sequences import Rows, Sequences, SequenceSource
from marin_pipeline.data.token_store import TokenStore
from steps.pack import pack
from steps.tokenize import tokenize
from steps.train_tokenizer import train_tokenizer
from tests.data.defective_loader import DefectiveLoader
from tests.data.inspected_steps import BATCH, LENGTH, STEPS, site, trained
from tests.data.orders import SEQUENCE_LENGTH, mixed, one_source
from tests.data.token_stores import write_store


class Counted:
    """A source whose tokens say which sequence they are of."""

    sequence_length = SEQUENCE_LENGTH

    def __init__(self, sequences: int, first: int = 0) -> None:
        self._sequences, self._first = sequences, first

    def __len__(self) -> int:
        return self._sequences

    def read(self, ids: np.ndarray) -> Rows:
        tokens = (self._first + ids[:, None] * SEQUENCE_LENGTH + np.arange(SEQUENCE_LENGTH + 1)).astype(np.int32)
        return Rows(tokens[:, :-1], tokens[:, 1:])


def _audit(loader: Callable[..., Loader], order: TrainingOrder, sources: list[SequenceSource], **how: Any):
    def loader_for(rows: np.ndarray, start: int, stop: int, workers: int) -> Loader:
        return loader(order, sources, rows=rows, start=start, stop=stop, workers=workers)

    return audit(loader_for, order, sources, **how)


def test_the_loader_passes_for_all_hosts_workers_and_interruptions() -> None:
    order = mixed(web=60, code=59, batch_size=24)
    report = _audit(Loader, order, [Counted(60), Counted(59, 10_000)])
    assert report.ok
    assert len(report.rows) == 4 * 2 * 4
    assert {(row.hosts[0], row.workers) for row in report.rows} == {(h, w) for h in (1, 2, 3, 8) for w in (0, 2)}
    assert {row.hosts for row in report.rows if len(row.hosts) == 2} == {(1, 2), (2, 3), (3, 8), (8, 1)}
    assert len({row.stream for row in report.rows}) == 1
    assert all(row.sequences == row.distinct == row.steps * 24 for row in report.rows)
    assert min(report.epochs.values()) >= 1.25


def test_hosts_need_not_have_equal_parts_of_a_batch() -> None:
    assert _audit(Loader, one_source(50, 7), [Counted(50)], hosts=(2, 3), workers=(0,)).ok


def _defective(hosts: int, sequences: int, preempted: int | None) -> AuditReport:
    order = one_source(sequences, 32)
    last = sequences // 32
    plan = range(preempted, last, preempted) if preempted else ()
    how: dict[str, Any] = {"hosts": (hosts,), "workers": (0,), "epochs": 1, "resumes": [plan]}
    return _audit(DefectiveLoader, order, [Counted(sequences)], **how)


def test_the_planted_defect_passes_with_one_host() -> None:
    for preempted in (None, 16):
        report = _defective(1, 8192, preempted)
        assert report.ok
        assert (report.rows[0].distinct, report.rows[0].repeated) == (8192, 0)


# The middle of what was measured with MaxText's own code and permutations, 8,192 sequences and batches of 32:
# 6164, 5576, 5324 distinct without a preemption, most reads 2, 4, 6; with one every 16 steps 1419 and 15.
@pytest.mark.parametrize(
    ("hosts", "preempted", "distinct", "repeated"),
    [(2, None, 6164, 0.248), (4, None, 5576, 0.319), (8, None, 5324, 0.350), (8, 16, 1419, 0.827)],
)
def test_the_planted_defect_is_caught_with_the_figures_of_the_original(
    hosts: int, preempted: int | None, distinct: int, repeated: float
) -> None:
    (row,) = _defective(hosts, 8192, preempted).rows
    assert not row.ok
    assert row.other_batches == 256
    assert row.distinct == pytest.approx(distinct, rel=0.02)
    assert row.repeated == pytest.approx(repeated, abs=0.01)
    assert hosts < 8 or row.most_reads in ((5, 6, 7) if preempted is None else (14, 15, 16))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_planted_defect_is_caught_in_every_run_with_more_than_one_host(workers: int) -> None:
    report = _audit(DefectiveLoader, one_source(480, 24), [Counted(480)], workers=(workers,))
    caught = {row.hosts: not row.ok for row in report.rows}
    assert caught.pop((1,)) is False
    assert len(caught) > 10
    assert all(caught.values())
    assert "runs are wrong" in report.lines()[-1]


@pytest.mark.parametrize(("hosts", "start"), [(2, 0), (8, 0), (8, 16)])
def test_the_ledger_stops_the_planted_defect_at_its_first_batch(hosts: int, start: int) -> None:
    order = one_source(8192, 32)
    earlier = ReadLedger(order)
    for step in range(start):
        earlier.record(step, order.batch(step))
    ledger = ReadLedger(order, earlier.entry)
    rows = np.array_split(np.arange(32), hosts)[-1]
    with DefectiveLoader(order, [Counted(8192)], rows=rows, start=start, stop=start + 4, workers=0) as loader:
        loaded = next(loader)
        with pytest.raises(MarinError, match=f"step {start}, row {rows[0]} of the batch: the loader delivered"):
            ledger.record(start, loaded.ids, rows)


def test_one_process_can_read_what_several_defective_hosts_would() -> None:
    order, source = one_source(480, 24), Counted(480)
    whole = DefectiveLoader(order, [source], rows=np.arange(24), start=3, stop=9, workers=0, hosts=8)
    parts = [
        DefectiveLoader(order, [source], rows=rows, start=3, stop=9, workers=0)
        for rows in np.array_split(np.arange(24), 8)
    ]
    for step in zip(whole, *parts, strict=True):
        assert step[0].rows.inputs.tolist() == np.concatenate([part.rows.inputs for part in step[1:]]).tolist()


class _Altered(Loader):
    """A loader that is wrong in one way, in hosts that read the last row of a batch."""

    def __init__(self, order: TrainingOrder, sources: Any, *, rows: np.ndarray, start: int, stop: int, workers: int):
        more = {"longer": 1, "shorter": -1}.get(self.way, 0) if rows[-1] == order.batch_size - 1 else 0
        super().__init__(order, sources, rows=rows, start=start, stop=stop + more, workers=workers)

    way = ""

    def __next__(self) -> Loaded:
        loaded = super().__next__()
        if loaded.needed[-1] != len(loaded.batch) - 1 or loaded.step != 2:
            return loaded
        rows, batch = loaded.rows, loaded.batch
        match self.way:
            case "a token":
                rows.inputs[-1, 3] += 1
            case "a target":
                rows.targets[-1, 3] += 1
            case "documents":
                documents = np.ones_like(rows.inputs)
                documents[-1, 4:] = 2
                return replace(loaded, rows=replace(rows, documents=documents))
            case "rows exchanged":
                place = loaded.needed[-1]
                batch.sequences[[0, place]] = batch.sequences[[place, 0]]
            case "an id beyond the source":
                batch.sequences[-1] += 10**6
            case "a row of another host":
                batch.sequences[0] += 1
            case "another epoch":
                batch.epochs[-1] += 1
            case "a row fewer":
                return replace(loaded, rows=Rows(rows.inputs[1:], rows.targets[1:]))
            case "the step":
                return replace(loaded, step=3)
        return loaded


@pytest.mark.parametrize(
    ("way", "problem"),
    [
        ("a token", "step 2, row 23 does not hold sequence"),
        ("a target", "step 2, row 23 does not hold sequence"),
        ("documents", "step 2, row 23 does not hold sequence"),
        ("rows exchanged", "step 2"),
        ("an id beyond the source", "step 2, row 23 is sequence 10"),
        ("another epoch", "step 2, row 23 is sequence"),
        ("a row fewer", "another number of rows at step 2"),
        ("the step", "delivers step 3"),
        ("longer", "goes on after step"),
        ("shorter", "ends before step"),
    ],
)
@pytest.mark.parametrize("hosts", [1, 3])
def test_each_other_defect_is_caught_and_named(way: str, problem: str, hosts: int) -> None:
    loader = type("Loader", (_Altered,), {"way": way})
    report = _audit(loader, one_source(240, 24), [Counted(240)], hosts=(hosts,), workers=(0,), resumes=[()])
    assert not report.ok
    assert problem in (report.rows[0].problem or "")


def test_a_host_that_knows_another_batch_than_the_order_says_is_caught_though_its_rows_are_right() -> None:
    loader = type("Loader", (_Altered,), {"way": "a row of another host"})
    (row,) = _audit(loader, one_source(240, 24), [Counted(240)], hosts=(3,), workers=(0,), resumes=[()]).rows
    assert row.problem == "step 2: the batch that 1 of 3 hosts know is not the order's"
    assert row.other_batches == 1


def test_no_run_is_no_proof() -> None:
    assert not _audit(Loader, one_source(20, 6), [Counted(20)], hosts=(1,), workers=()).ok


def test_a_loader_that_is_wrong_only_after_it_goes_on_is_caught_only_there() -> None:
    order, source = one_source(240, 24), Counted(240)

    def loader_for(rows: np.ndarray, start: int, stop: int, workers: int) -> Loader:
        begun = max(0, start - 1)
        loader = Loader(order, [source], rows=rows, start=begun, stop=stop, workers=workers)
        return loader

    report = audit(loader_for, order, [source], hosts=(1, 2), workers=(0,))
    assert [row.ok for row in report.rows] == [not row.resumed for row in report.rows]


class _Short(TrainingOrder):
    """An order that is no permutation: two sequences of the source come twice in an epoch, and two never."""

    def batch(self, step: int) -> Batch:
        batch = super().batch(step)
        return replace(batch, sequences=np.where(batch.sequences > 237, 0, batch.sequences))


def test_an_order_that_reads_a_sequence_twice_is_caught_though_the_loader_follows_it() -> None:
    plain = one_source(240, 24)
    order = _Short(plain.stream, {"web": 240}, 24, 7)
    report = _audit(Loader, order, [Counted(240)], hosts=(1, 2), workers=(0,), epochs=2)
    assert not any(row.ok for row in report.rows)
    assert {(row.other_batches, row.distinct, row.most_reads) for row in report.rows} == {(0, 2 * 238, 3)}
    assert report.rows[0].problem == "4 of 480 rows were read before in their epoch"


def test_runs_are_stopped_never_early_amid_and_often() -> None:
    assert stops(0, 100) == [(), (1,), (40,), (11, 22, 33, 44, 55, 66, 77, 88)]
    assert stops(5, 7) == [(), (6,)]
    assert stops(0, 1) == [()]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"hosts": (7,)}, "share a batch of 6"),
        ({"hosts": ()}, "share a batch of 6"),
        ({"resumes": [(3, 2)]}, "must ascend"),
        ({"resumes": [(0,)]}, "must ascend within steps 0 to"),
        ({"steps": 0}, "0 steps audit nothing"),
        *[
            ({"epochs": wrong}, "epochs is .*: give a number above 0")
            for wrong in (0, -1, math.inf, math.nan, 1e300, "1")
        ],
    ],
)
def test_an_audit_that_says_nothing_is_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _audit(Loader, one_source(20, 6), [Counted(20)], **how)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    write_store(tmp_path, [[np.append(random.integers(1, 2000, 99), 0) for _ in range(20)] for _ in range(2)])
    return tmp_path


def test_the_command_audits_a_folder_of_tokens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(folder), "--sequence-length", "32", "--hosts", "1,3", "--batch-size", "6"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == [
        *["hosts", "workers", "resumed", "at", "steps", "sequences", "distinct", "most", "reads", "repeated"],
        *["batches", "tokens", "stream"],
    ]
    assert len(printed) == 1 + 16 + 1 + 2
    assert printed[-1] == "all 16 runs are ok"
    assert main(["audit", str(folder), "--sequence-length", "32", "--hosts", "1,3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_the_command_ends_with_4_when_the_loader_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin_pipeline.data.audit_command.Loader", DefectiveLoader)
    assert main(["audit", str(folder), "--sequence-length", "32"]) == 4
    assert "runs are wrong" in capsys.readouterr().out


def test_the_command_says_what_it_cannot_audit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(folder.parent)]) == 1
    assert "no readable ledger of tokens" in capsys.readouterr().err
    assert main(["audit", str(folder), "--sequence-length", "4000"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: '{folder}' holds 4,000 tokens, less than one sequence of 4,000 and a target: ")
    assert "use a shorter sequence length" in err
    shutil.rmtree(folder / "part-1")
    assert main(["audit", str(folder), "--sequence-length", "32"]) == 1
    assert "part-1/tokens: missing" in capsys.readouterr().err


def test_the_order_over_tokens_does_not_hang_on_how_they_are_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[str] = []
    monkeypatch.chdir(folder.parent)
    for target in (str(folder), folder.name, f"./{folder.name}"):
        assert main(["audit", target, "--sequence-length", "32", "--json"]) == 0
        streams.append(json.loads(capsys.readouterr().out)["rows"][0]["stream"])
    assert len(set(streams)) == 1


@pytest.mark.parametrize("hosts", [["1,3"], ["1", "3"], ["1,", "3"]])
@pytest.mark.parametrize("first", [True, False])
def test_counts_may_stand_apart(
    folder: Path, capsys: pytest.CaptureFixture[str], hosts: list[str], first: bool
) -> None:
    how = ["--hosts", *hosts, "--workers", "0", "--json", "--sequence-length", "32"]
    assert main(["audit", *([str(folder), *how] if first else [*how, str(folder)])]) == 0
    assert {row["hosts"][0] for row in json.loads(capsys.readouterr().out)["rows"]} == {1, 3}


def test_numbers_that_are_none_are_refused_with_an_example(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert joined_counts(["--hosts=1", "2", "--workers", "0", "2", "123456"]) == [
        "--hosts=1,2",
        *("--workers", "0,2", "123456"),
    ]
    with pytest.raises(SystemExit):
        main(["audit", str(folder), "--hosts", "two"])
    assert "argument --hosts: 'two': give numbers, such as 1,2" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["inf", "nan", "1e300", "0", "-1", "-inf", "two", ""])
def test_passes_that_no_audit_makes_are_refused(folder: Path, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(folder), f"--epochs={wrong}"])
    assert ended.value.code == 2
    assert f"argument --epochs: '{wrong}': give a number above 0, 10,000 at most" in capsys.readouterr().err


@pytest.mark.parametrize(("hosts", "first"), [("0", 0), ("9", 9), ("2,16", 16), ("16,2", 16)])
def test_hosts_that_a_batch_has_no_rows_for_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], hosts: str, first: int
) -> None:
    arguments = ["audit", str(folder), "--sequence-length", "32", "--batch-size", "8", "--hosts", hosts]
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: --hosts {first}: {first} hosts cannot share a batch of 8 rows")
    assert err.endswith("give numbers from 1 to 8\n")


@pytest.mark.parametrize("wrong", ["-1", str(2**32), str(2**64), "1.5", "x"])
def test_a_seed_that_no_run_can_have_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    with pytest.raises(SystemExit):
        main(["audit", str(folder), f"--seed={wrong}"])
    assert re.search(rf"argument --seed: .*{re.escape(wrong)}.*: give a (whole )?number", capsys.readouterr().err)


def test_hosts_share_a_batch_equally_unless_one_alone_could() -> None:
    found = {size: default_hosts(size) for size in (1, 2, 4, 5, 9, 24, 32)}
    assert found == {1: (1,), 2: (1, 2), 4: (1, 2), 5: (1, 2), 9: (1, 3), 24: (1, 2, 3, 8), 32: (1, 2, 8)}


Said = tuple[int, str, str]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a run on two sources in two phases, one of them packed."""
    prefix = str(tmp_path_factory.mktemp("audited") / "store")
    pages = {f"page-{place}": f"Page {place}, " + "word by word. " * (place % 4) for place in range(12)}
    made = {name: site(name=name, pages=pages).named(name) for name in ("web", "code")}
    tokenizer = train_tokenizer(made["web"], vocabulary=300).named("tokenizer")
    tokens = {name: tokenize(each, tokenizer).named(f"tokens/{name}") for name, each in made.items()}
    packing = {"code": pack(tokens["code"], sequence_length=LENGTH).named("packing")}
    run(trained(tokens=tokens, packing=packing).named("run"), prefix=prefix, backend="inline", quiet=True)
    wrong = trained(tokens=tokens, packing=packing, wrong="0123456789abcdef").named("wrong")
    run(wrong, prefix=prefix, backend="inline", quiet=True)
    return prefix


@pytest.fixture
def audited(prefix: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs the command."""

    def said(*arguments: str) -> Said:
        capsys.readouterr()
        code = main(["audit", *arguments, "--prefix", prefix])
        out, err = capsys.readouterr()
        return code, out, err

    return said


def test_a_run_is_audited_over_all_that_it_read(audited: Callable[..., Said], prefix: str) -> None:
    data = RunData(load("run", prefix=prefix), "run")
    code, out, err = audited("run", "--json")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert (report["batch_size"], report["sequence_length"]) == (BATCH, LENGTH)
    assert report["sequences"] == dict(zip(data.order.names, data.order.sequences, strict=True))
    assert report["epochs"] == {name: round(passes, 4) for name, passes in data.order.epochs(STEPS).items()}
    assert (report["run"], report["steps"], report["steps_of_run"]) == ("run", STEPS, STEPS)
    key = load("run", prefix=prefix).key[:8]
    assert report["state"] == {"key": key, "step": STEPS}
    assert report["hosts_left_out"] == [3, 8]
    assert {row["hosts"][0] for row in report["rows"]} == {1, 2}
    assert all(row["steps"] == STEPS for row in report["rows"])
    sources: list[SequenceSource] = [data.source(name) for name in data.order.names]
    direct = _audit(Loader, data.order, sources, hosts=(2,), workers=(0,), steps=STEPS)
    assert {row["stream"] for row in report["rows"]} == {direct.rows[0].stream}
    lines = audited("run")[1].splitlines()
    assert lines[-3:] == [
        f"not with 3 and 8 hosts, which cannot share {BATCH} rows equally",
        f"the first {STEPS} of {STEPS} steps of run (state {key} at step {STEPS}), with its own sources, phases, seed "
        "and shuffle",
        f"all {len(report['rows'])} runs are ok",
    ]


def test_a_long_run_is_audited_in_part(audited: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_pipeline.data.audit_command.LARGEST", 5 * BATCH)
    assert json.loads(audited("run", "--json")[1])["steps"] == 5
    assert f"the first 5 of {STEPS} steps of run (state " in audited("run")[1]
    assert audited("wrong")[0] == 0  # its wrong step is not among them


def test_an_order_that_the_run_did_not_record_is_refused(audited: Callable[..., Said]) -> None:
    code, out, err = audited("wrong")
    assert (code, out) == (1, "")
    assert "the batch that the run recorded is 0123456789abcdef" in err


class OtherSeed(Loader):
    """Reads another order than the run's."""

    def __init__(self, order: TrainingOrder, sources: list[SequenceSource], **how: Any) -> None:
        held = dict(zip(order.names, order.sequences, strict=True))
        other = TrainingOrder(order.stream, held, order.batch_size, order.seed + 1, order.shuffle)
        super().__init__(other, sources, **how)


def test_a_loader_of_another_order_is_found_by_the_audit_of_a_run(
    audited: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin_pipeline.data.audit_command.Loader", OtherSeed)
    code, out, _ = audited("run")
    assert code == 4
    assert "runs are wrong" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["packing"], 1, "'packing' is a packing plan; give a trained state or tokens"),
        (["tokenizer"], 1, "'tokenizer' is a tokenizer; give a trained state or tokens"),
        (["web"], 1, "'web' is a set of documents; give a trained state or tokens"),
        (["nothing"], 2, "'nothing' is no name and no key"),
        (["run", "--seed", "0"], 2, "--seed: run is a trained state, which says this itself"),
        (["run", "--sequence-length", "8"], 2, "--sequence-length: run is a trained state"),
        (["run", "--hosts", "0"], 2, "--hosts 0: 0 hosts cannot share"),
        (["run", "--hosts", "3"], 2, "--hosts 3: so many hosts cannot share a batch of run equally"),
        (["tokens/code", "--sequence-length", "9000"], 1, "'tokens/code' holds "),
    ],
)
def test_what_cannot_be_audited_is_refused_in_words(
    audited: Callable[..., Said], arguments: list[str], code: int, message: str
) -> None:
    found, out, err = audited(*arguments)
    assert (found, out) == (code, "")
    assert message in err


def test_the_audit_passes_over_a_store_whose_documents_are_kept_apart(folder: Path) -> None:
    from marin_pipeline.data.opened import open_tokens

    source = Sequences(TokenStore(open_tokens(str(folder))), SEQUENCE_LENGTH, separate=True)
    report = _audit(Loader, one_source(len(source), 24), [source], hosts=(1, 3), workers=(0, 2), resumes=[(), (5,)])
    assert report.ok


def test_a_folder_whose_files_were_exchanged_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = np.arange(2_000) % 50
    write_store(tmp_path, [[tokens[:1000].tolist()], [tokens[::-1][:1000].tolist()]])
    first, second = sorted(path for path in tmp_path.rglob("c/0") if "tokens" in path.parts)
    first.rename(tmp_path / "aside")
    second.rename(first)
    (tmp_path / "aside").rename(second)
    assert main(["audit", str(tmp_path), "--sequence-length", "64"]) == 1
    assert "not as they were written" in capsys.readouterr().err
