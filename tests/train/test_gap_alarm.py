"""The alarm lets a run with the real loader pass, and stops one whose loader reads the same text again and again."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from haliax import NamedArray

from marin_pipeline.core.errors import InputError, MarinError
from marin_pipeline.data.loader import Loaded, Loader
from marin_pipeline.data.mixture import Mixture, Phase, Source
from marin_pipeline.data.order import TrainingOrder
from marin_pipeline.data.sequences import NO_TARGET, Rows, SequenceSource
from marin_pipeline.data.stream import Stream
from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train.feed import placed
from marin_pipeline.train.gap import Gap, Score
from marin_pipeline.train.gap_alarm import SEQUENCES, GapAlarm
from marin_pipeline.train.mesh import MeshShape, build
from marin_pipeline.train.program import PARAMETERS, Program, under
from marin_pipeline.train.recipe import lower
from tests.conftest import ROOT
from tests.data.defective_loader import DefectiveLoader

LENGTH, BATCH, VOCABULARY = 32, 8, 64
BOUND = 0.5
MakeLoader = Callable[..., Loader]


class Text:
    """Structured random text in memory: each token has 8 successors of 64, the same in all texts.

    Who knows them predicts any text to ln 8 = 2.08 nats a token, and none better; but a text that was learned by heart.
    """

    sequence_length = LENGTH

    def __init__(self, seed: int, sequences: int, successors: int = 8, separate: bool = False) -> None:
        random = np.random.default_rng(seed)
        table = np.random.default_rng(0).integers(0, VOCABULARY, (VOCABULARY, successors))
        self.tokens = np.empty((sequences, LENGTH + 1), np.int32)
        self.tokens[:, 0] = random.integers(0, VOCABULARY, sequences)
        for place in range(LENGTH):
            chosen = random.integers(0, successors, sequences)
            self.tokens[:, place + 1] = table[self.tokens[:, place], chosen]
        self.separate = separate

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, ids: np.ndarray) -> Rows:
        tokens = self.tokens[ids]
        targets = tokens[:, 1:].copy()
        documents = None
        if self.separate:
            documents = np.where(np.arange(LENGTH) < 20, 1, 2).astype(np.int32) * np.ones((len(ids), 1), np.int32)
            # Of the second document only, and not to its end.
            targets[:, :20] = targets[:, 28:] = NO_TARGET
        return Rows(tokens[:, :-1], targets, documents)


def order_of(sources: dict[str, Text], seed: int = 7) -> TrainingOrder:
    weights = {name: f"1/{len(sources)}" for name in sources}
    mixture = Mixture(tuple(Source(name, None) for name in sources), (Phase(0, {**weights}),))
    return TrainingOrder(Stream(mixture, LENGTH), {name: len(text) for name, text in sources.items()}, BATCH, seed)


def program_on(mesh: MeshShape = MeshShape(data=1), width: int = 16) -> Program:
    recipe = lower(
        tokens="test",
        model=LlamaConfig(vocabulary=VOCABULARY, width=width, layers=2, heads=2, feed_forward=2 * width),
        steps=256,
        learning_rate=5e-3,
        muon_learning_rate=0.02,
        optimizer="adamw",
        schedule="constant",
        warmup=10,
        final_fraction=0.1,
        weight_decay=0.0,
        clip=1.0,
        batch_size=BATCH,
        sequence_length=LENGTH,
        seed=0,
        data_seed=0,
        max_epochs=None,
        numerics="fast",
    )
    return Program(recipe, build(mesh, BATCH))


@pytest.fixture(scope="module")
def wide() -> Program:
    return program_on(width=64)


@pytest.fixture(scope="module")
def narrow() -> Program:
    return program_on()


@pytest.fixture(scope="module")
def initial(narrow: Program) -> dict[str, NamedArray]:
    return narrow.initial()


def trained(program: Program, loader: MakeLoader, steps: int, preempted_every: int) -> tuple[GapAlarm, Any, set[int]]:
    """A run that is preempted again and again: the alarm of its last process, the state, and the sequences read."""
    text, held_out = Text(1, 2048), Text(2, 256)
    order = order_of({"text": text})
    rows = program.layout.needed
    state, read = program.initial(), set[int]()
    alarm = GapAlarm(program, order, [text], [held_out], BOUND)
    for start in range(0, steps, preempted_every):
        alarm = GapAlarm(program, order, [text], [held_out], BOUND)
        stop = min(steps, start + preempted_every)
        with loader(order, [text], rows=rows, start=start, stop=stop, workers=0) as batches:
            for loaded in batches:
                alarm.read(loaded)
                read.update(loaded.ids.sequences.tolist())
                batch = placed(loaded.rows, rows, program.layout)
                state, _ = program.update(state, batch, loaded.step)
    return alarm, state, read


STEPS = 192


def test_a_run_with_the_real_loader_passes(wide: Program):
    alarm, state, read = trained(wide, Loader, STEPS, preempted_every=16)
    assert len(read) == STEPS * BATCH
    gap = alarm.check(state, STEPS)
    print(f"{len(read)} of {STEPS * BATCH} sequences are different; {gap}")
    assert gap.unseen is not None
    assert gap.held_out is not None
    # Structure was learned: unread text is predicted far better than by chance, ln 64 = 4.16.
    assert max(gap.unseen.loss, gap.held_out.loss) < 2.6


def test_a_run_whose_loader_shards_twice_and_forgets_where_it_was_is_stopped(wide: Program):
    def defective(*arguments: Any, **options: Any) -> Loader:
        return DefectiveLoader(*arguments, hosts=8, **options)

    alarm, state, read = trained(wide, defective, STEPS, preempted_every=16)
    assert len(read) < 0.3 * STEPS * BATCH
    gap = alarm.measure(state, STEPS)
    print(f"{len(read)} of {STEPS * BATCH} sequences are different; {gap}")
    for difference in (gap.unseen_difference, gap.held_out_difference):
        assert difference is not None
        assert difference.least > 2 * BOUND
    with pytest.raises(MarinError, match=r"Text that was not read yet and held-out text: more than 0\.5 above"):
        alarm.check(state, STEPS)
    # The order's word for what was read would have hidden most of it.
    text, held_out = Text(1, 2048), Text(2, 256)
    believed = GapAlarm(wide, order_of({"text": text}), [text], [held_out], BOUND).measure(state, STEPS)
    assert believed.held_out_difference is not None
    assert gap.held_out_difference is not None
    assert believed.held_out_difference.nats < gap.held_out_difference.nats / 2


def mixed() -> tuple[dict[str, Text], dict[str, Text]]:
    sources = {"web": Text(1, 400), "code": Text(2, 400, successors=2), "tiny": Text(3, 10)}
    return sources, {name: Text(10 + place, 50, 2 if name == "code" else 8) for place, name in enumerate(sources)}


def following(
    program: Program, order: TrainingOrder, sources: Sequence[SequenceSource], held_out: Sequence[SequenceSource]
) -> tuple[GapAlarm, int]:
    """An alarm that was told of 40 steps."""
    alarm = GapAlarm(program, order, sources, held_out, BOUND)
    rows = program.layout.needed
    with Loader(order, sources, rows=rows, start=0, stop=40, workers=0) as loader:
        for loaded in loader:
            alarm.read(loaded)
    return alarm, 40


def measured(program: Program, state: Any, separate: bool = False) -> Gap:
    sources, held_out = mixed()
    for text in (*sources.values(), *held_out.values()):
        text.separate = separate
    alarm, step = following(program, order_of(sources), list(sources.values()), list(held_out.values()))
    return alarm.measure(state, step)


def figures(gap: Gap) -> list[float]:
    scores = [gap.seen, gap.unseen, gap.held_out, gap.unseen_difference, gap.held_out_difference]
    return [
        value for each in scores if each is not None for value in vars(each).values() if not isinstance(value, Score)
    ]


PROGRAM = """
import json, sys
import jax
number, processes, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if processes > 1:
    jax.distributed.initialize(f"localhost:{port}", processes, number)
from marin_pipeline.train.mesh import MeshShape
from tests.train.test_gap_alarm import SHAPES, figures, measured, program_on

found = {}
for shape in SHAPES[processes]:
    program = program_on(MeshShape(*shape))
    found[str(shape)] = figures(measured(program, program.initial(), separate=True))
print(json.dumps(found))
"""

SHAPES = {1: [(1, 4, 1), (1, 2, 2)], 2: [(2, 2, 1), (1, 1, 4)]}
"""Replica, data and model over four devices, by number of processes."""


def scored(processes: int) -> list[dict[str, list[float]]]:
    """The figures of each process, for all meshes of four devices."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    variables = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={4 // processes}",
        "PYTHONPATH": str(ROOT),
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(number), str(processes), port],
            env=variables,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    printed = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0] * processes
    return [json.loads(text.splitlines()[-1]) for text in printed]


@pytest.mark.parametrize("processes", [1, 2])
def test_any_mesh_and_number_of_processes_gives_the_same_figures(
    narrow: Program, initial: dict[str, NamedArray], processes: int
):
    expected = figures(measured(narrow, initial, separate=True))
    for found in scored(processes):
        for shape in SHAPES[processes]:
            assert found[str(shape)] == pytest.approx(expected, rel=1e-4, abs=1e-4), shape


def test_what_is_scored_is_what_the_loader_delivered(narrow: Program, initial: dict[str, NamedArray]):
    """A loader that delivers other tokens than it says, for which the order has no word."""
    sources, held_out = mixed()
    order = order_of(sources)
    alarm = GapAlarm(narrow, order, list(sources.values()), list(held_out.values()), BOUND)
    honest, step = following(narrow, order, list(sources.values()), list(held_out.values()))
    one = np.zeros((BATCH, LENGTH), np.int32)
    for each in range(step):
        alarm.read(Loaded(each, order.batch(each), Rows(one, one), np.arange(BATCH)))
    lying, true = alarm.measure(initial, step), honest.measure(initial, step)
    assert lying.seen.error < 1e-6 < true.seen.error
    assert (lying.unseen, lying.held_out) == (true.unseen, true.held_out)


def test_unread_text_comes_next_in_the_order_and_is_of_the_first_epoch():
    sources, held_out = mixed()
    order = order_of(sources)
    program = program_on()
    alarm, step = following(program, order, list(sources.values()), list(held_out.values()))
    seen, _ = alarm._seen(step)
    unseen = alarm._unseen(step, seen)
    assert not unseen.epochs.any()
    before = order.between(0, order.index(step))
    for place, name in enumerate(order.names):
        read = set(before.sequences[before.sources == place].tolist())
        coming = unseen.sequences[unseen.sources == place].tolist()
        assert not read & set(coming)
        if name == "tiny":
            assert not coming
            continue
        assert len(coming) == np.count_nonzero(seen == place) > 10
        rest = order.between(order.index(step), order.index(step) + 300)
        assert rest.sequences[rest.sources == place][: len(coming)].tolist() == coming


def test_where_all_is_read_again_only_held_out_text_is_compared(narrow: Program, initial: dict[str, NamedArray]):
    text = Text(1, 100)
    alarm, step = following(narrow, order_of({"text": text}), [text], [Text(2, 100)])
    gap = alarm.check(initial, step)
    assert (gap.unseen, gap.unseen_difference) == (None, None)
    assert gap.held_out_difference is not None
    assert (gap.most_read, gap.epochs) == ("text", 3.2)


@pytest.mark.parametrize("parameters_alone", [False, True])
def test_without_held_out_text_what_was_read_and_what_comes_next_are_compared(
    narrow: Program, initial: dict[str, NamedArray], parameters_alone: bool
):
    text = Text(1, 1000)
    alarm, step = following(narrow, order_of({"text": text}), [text], [])
    gap = alarm.check(under(PARAMETERS, initial) if parameters_alone else initial, step)
    assert (gap.held_out, gap.held_out_difference) == (None, None)
    assert gap.unseen_difference is not None
    assert gap.unseen is not None
    assert gap.seen.sequences == gap.unseen.sequences == SEQUENCES


def test_what_is_told_adds_up_and_names_the_sources_that_are_not_compared(
    narrow: Program, initial: dict[str, NamedArray]
):
    gap = measured(narrow, initial)
    assert gap.not_compared == {"unseen": {"tiny": "all of it was read"}}
    assert gap.no_verdict == {}
    assert set(gap.by_source["unseen"]) == {"web", "code"}
    assert set(gap.by_source["seen"]) == set(gap.by_source["held_out"]) == {"web", "code", "tiny"}
    found = gap.unseen_difference
    assert found is not None
    read = [gap.by_source["seen"][name] for name in ("web", "code")]
    assert found.read.sequences == sum(each.sequences for each in read) < gap.seen.sequences
    assert found.read.loss == pytest.approx(sum(e.loss * e.sequences for e in read) / found.read.sequences)
    assert "(not compared: tiny (all of it was read)); held-out text" in str(gap)


def test_held_out_sources_without_a_sequence_are_named(narrow: Program, initial: dict[str, NamedArray]):
    sources, held_out = mixed()
    held_out["code"] = Text(1, 0)
    alarm, step = following(narrow, order_of(sources), list(sources.values()), list(held_out.values()))
    gap = alarm.measure(initial, step)
    assert gap.not_compared["held_out"] == {"code": "nothing of it is held out"}


def test_few_held_out_sequences_give_no_verdict_and_it_is_said(narrow: Program, initial: dict[str, NamedArray]):
    text = Text(1, 100)
    alarm, step = following(narrow, order_of({"text": text}), [text], [Text(2, 7)])
    told = str(alarm.check(initial, step))
    assert "text that was not read yet, no verdict: all of each source was read; held-out text" in told
    assert "no verdict: of the sources that have both, 64 sequences that were read and 7 others" in told
    alarm, step = following(narrow, order_of({"text": text}), [text], [])
    assert str(alarm.check(initial, step)).endswith("held-out text, no verdict: none was given")


def test_one_held_out_store_stands_for_all_sources(narrow: Program, initial: dict[str, NamedArray]):
    sources, _ = mixed()
    alarm, step = following(narrow, order_of(sources), list(sources.values()), [Text(4, 40)])
    gap = alarm.check(initial, step)
    assert gap.held_out is not None
    assert gap.held_out.sequences == 40
    assert gap.held_out_difference is not None
    assert gap.held_out_difference.nats == pytest.approx(gap.held_out.loss - gap.seen.loss)


def test_a_run_that_goes_on_is_scored_on_what_was_read_before_too(narrow: Program, initial: dict[str, NamedArray]):
    text = Text(1, 1000)
    order = order_of({"text": text})
    alarm = GapAlarm(narrow, order, [text], [], BOUND)
    with Loader(order, [text], rows=np.arange(BATCH), start=50, stop=52, workers=0) as loader:
        for loaded in loader:
            alarm.read(loaded)
    _, rows = alarm._seen(52)
    earlier, last = order.between(0, 400).sequences, order.between(400, 416).sequences
    numbers = [int(np.flatnonzero((text.tokens[:, :-1] == row).all(axis=1))[0]) for row in rows.inputs]
    assert len(numbers) == SEQUENCES
    assert sorted(numbers[-16:]) == sorted(last.tolist())
    places = [earlier.tolist().index(number) for number in numbers[:-16]]
    assert max(np.diff([0, *places, 400])) <= 400 / 48 + 2
    assert alarm.check(initial, 52).seen.sequences == SEQUENCES


def test_positions_without_a_target_and_other_documents_do_not_count(narrow: Program):
    state = narrow.initial()
    whole, apart = measured(narrow, state), measured(narrow, state, separate=True)
    assert apart.seen.sequences == whole.seen.sequences
    assert apart.seen.loss != whole.seen.loss
    # Neither what stands where no target is makes a difference, nor another document.
    text = Text(1, 1000, separate=True)
    order = order_of({"text": text})
    first, step = following(narrow, order, [text], [])
    text.tokens[:, 29:] = text.tokens[:, :20] = 0
    second, _ = following(narrow, order, [text], [])
    assert figures(first.measure(state, step)) == pytest.approx(figures(second.measure(state, step)), rel=1e-6)


def test_nothing_is_scored_before_anything_was_read(narrow: Program, initial: dict[str, NamedArray]):
    text = Text(1, 100)
    with pytest.raises(InputError, match="nothing was read"):
        GapAlarm(narrow, order_of({"text": text}), [text], [], BOUND).check(initial, 0)


def test_what_does_not_fit_is_refused_when_the_run_begins(narrow: Program):
    sources, held_out = mixed()
    order, texts, held = order_of(sources), list(sources.values()), list(held_out.values())
    shorter = Text(1, 10)
    shorter.sequence_length = 16
    for wrong, bound, message in (
        (held[:2], BOUND, "2 held-out sources were given for 3"),
        ([held[0], shorter, held[2]], BOUND, "'code' is cut every 16 tokens"),
        ([shorter], BOUND, "'of all sources' is cut every 16"),
        ([Text(1, 0)], BOUND, "no sequence of 32 tokens"),
        (held, float("nan"), "maximum_gap is nan"),
        (held, -1.0, "maximum_gap is -1"),
    ):
        with pytest.raises(InputError, match=message):
            GapAlarm(narrow, order, texts, wrong, bound)


def test_ids_of_a_batch_that_was_never_delivered_are_not_scored(narrow: Program):
    """Rows of another process are taken from it, never from the order's word for them."""
    text = Text(1, 1000)
    order = order_of({"text": text})
    alarm = GapAlarm(narrow, order, [text], [], BOUND)
    batch = order.batch(0)
    alarm.read(Loaded(0, batch, text.read(batch.sequences[:4]), np.arange(4)))
    assert [row is None for row in alarm._kept.spread()[1]] == [False] * 4 + [True] * 4
