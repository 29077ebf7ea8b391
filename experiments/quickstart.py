"""The quick start: a corpus curated, a small language model trained on it, and its held-out bits per byte, in minutes.

python experiments/quickstart.py                        the documentation that the installed packages carry
python experiments/quickstart.py --documents my/texts   your own text: jsonl, parquet, text files, or a folder
python experiments/quickstart.py train.steps=30         any argument of any step
"""

import json
from collections.abc import Mapping
from typing import Any

from marin_pipeline import Artifact, Documents, Experiment, main
from marin_pipeline.data.packages import pinned
from marin_pipeline.lab import tables
from marin_pipeline.models.config import LlamaConfig
from steps.baselines import baselines
from steps.check_disjoint import check_disjoint
from steps.dedupe import dedupe
from steps.evaluate import evaluate, generate
from steps.package_docs import package_docs
from steps.quality_filter import QualityRules, quality_filter
from steps.read_documents import documents_from
from steps.split_held_out import split_held_out
from steps.tokenize import tokenize
from steps.train import train
from steps.train_tokenizer import train_tokenizer

PACKAGES = ("numpy", "jax", "optax", "pandas", "datasets", "pyarrow")

# Documentation is short, and full of symbols and code: bounds that were set for web pages would leave a third of it.
RULES = QualityRules(
    min_words=5, min_alphabetic_words=0.5, min_stop_words=None, min_sentences=None, max_curly_brackets=None
)

PROMPTS = ("Return the", "Parameters\n")

# Bits per byte of held-out documentation, said before the first run; of other text nothing was said.
EXPECTED = (1.4, 1.9)

# Fewer held-out documents say little of any others.
FEW = 20

FUNNEL = (
    *("corpus", "split/train", "dedupe/train", "filter/train", "tokens"),
    *("split/held-out", "dedupe/held-out", "filter/held-out"),
)


def quickstart(documents: str | None = None, text_key: str = "text", held_out: float = 0.03) -> Experiment:
    """Train and evaluate a small language model on the documentation of installed packages, or on your own text."""
    corpus: Artifact[Documents]
    if documents is None:
        corpus = package_docs(packages=pinned(PACKAGES)).named("corpus")
    else:
        corpus = documents_from(documents, text_key=text_key).named("corpus")

    held_out_split = split_held_out(corpus, part="held_out", fraction=held_out).named("split/held-out")
    train_split = split_held_out(corpus, part="train", fraction=held_out).named("split/train")
    held_out_unique = dedupe(held_out_split).named("dedupe/held-out")
    train_unique = dedupe(train_split, against=held_out_unique).named("dedupe/train")
    held_out_documents = quality_filter(held_out_unique, rules=RULES).named("filter/held-out")
    train_documents = quality_filter(train_unique, rules=RULES).named("filter/train")

    disjoint = check_disjoint(train_documents, held_out_documents, fraction=held_out).named("disjoint")

    tokenizer = train_tokenizer(train_documents, vocabulary=2048).named("tokenizer")
    tokens = tokenize(train_documents, tokenizer).named("tokens")
    held_out_tokens = tokenize(held_out_documents, tokenizer).named("tokens/held-out")

    state = train(
        tokens,
        held_out=held_out_tokens,
        # A small text of your own is read again and again, and learned by heart: no alarm, since the gap is expected.
        max_epochs=1 if documents is None else None,
        maximum_gap=0.5 if documents is None else float("inf"),
        model=LlamaConfig(vocabulary=2048, width=128, layers=4, heads=2, feed_forward=352),
        steps=950,
        learning_rate=6e-3,
        muon_learning_rate=0.02,
        schedule="cosine",
        batch_size=8,
        sequence_length=128,
    ).named("train")

    scores = evaluate(state, held_out_documents, tokenizer).named("evaluate")
    simple = baselines(train_documents, held_out_documents, orders=(1, 3, 5)).named("baselines")
    words = generate(state, tokenizer, prompts=PROMPTS, tokens=40).named("generate")

    kind = "documentation" if documents is None else "text of yours"
    return Experiment(
        title="quick start",
        hypothesis=f"A model of 1.3 million parameters, trained for minutes on two cores, predicts {kind} that "
        "it has not seen better than a byte 5-gram that was fitted on all of the training text.",
        predictions={"held-out bits per byte": EXPECTED} if documents is None else {},
        targets=[scores, simple, words, disjoint],
        report=report if documents is None else report_of_own_text,
    )


def report(done: Mapping[str, Artifact[Any]]) -> None:
    """What came of it, and what was expected."""
    shown(done, f"expected of the model: {EXPECTED[0]} to {EXPECTED[1]}, found")


def report_of_own_text(done: Mapping[str, Artifact[Any]]) -> None:
    """What came of it."""
    shown(done, "found")


def shown(done: Mapping[str, Artifact[Any]], found: str) -> None:
    """Documents by step, the training curve, bits per byte beside simpler models, what they rest on, a few words."""
    console = tables.console()
    metrics = (done["train"] / "metrics.jsonl").read_text()
    console.print(tables.funnel({name: done[name].value for name in FUNNEL}))
    console.print(tables.curve(metrics))
    scores, simple = done["evaluate"].value, done["baselines"].value
    ngrams = {f"{each.order}-gram" if each.order > 1 else "unigram": each.scores for each in simple.ngrams}
    zstd = {f"zstd -{simple.zstd.level}": simple.zstd.bits_per_byte}
    console.print(tables.bits_per_byte({"model": scores, **ngrams}, zstd))
    console.print("n-grams of bytes are fitted on all of the training text; zstd sees the held-out text alone, as one")
    console.print(f"{found}: {scores.overall.bits_per_byte:.3f}")
    for line in resting_on(metrics, scores.overall.documents):
        console.print(line)
    console.print()
    for text in done["generate"].value:
        console.print(f"… {text!r}", markup=False)


def resting_on(metrics: str, documents: int) -> list[str]:
    """How often the training text was read, and how many held-out documents the figure is of."""
    updates = metrics.splitlines()
    epoch = json.loads(updates[-1])["epoch"] if updates else 0
    lines = [f"the training text was read {epoch:.2f} times; held-out documents that were scored: {documents:,}"]
    if documents < FEW:
        lines.append(
            f"these are fewer than {FEW}, and others may be predicted quite differently: hold out more with "
            "`--held-out 0.2`, or give more text"
        )
    return lines


if __name__ == "__main__":
    main(quickstart)
