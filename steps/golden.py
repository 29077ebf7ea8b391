"""Golden inputs of the step library: a small pipeline whose outputs stand in `code.lock`.

Each input is chosen so that the step has something to do on it: duplicates to drop, documents to filter, a loss that
falls. All of it takes seconds.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from marin_pipeline import Artifact, LocalFile
from marin_pipeline.data.packages import pinned
from marin_pipeline.models.config import LlamaConfig
from steps.baselines import baselines
from steps.check_disjoint import check_disjoint
from steps.dedupe import dedupe
from steps.download import Source, download
from steps.evaluate import evaluate, generate
from steps.pack import pack
from steps.package_docs import package_docs
from steps.quality_filter import QualityRules, quality_filter
from steps.read_documents import documents_from
from steps.split_held_out import split_held_out
from steps.tokenize import tokenize
from steps.train import train
from steps.train_tokenizer import train_tokenizer

VOCABULARY = (
    "the a one this every river house garden letter window morning teacher engine village story answer "
    "sees keeps finds makes follows remembers carries opens leaves paints of to and with from over under near behind"
)
MODEL = LlamaConfig(vocabulary=400, width=32, layers=2, heads=2, feed_forward=48, key_value_heads=1)
DISTRIBUTION = "marin-golden-docs"
MODULE = '''"""A module of the golden distribution, with a docstring in each place that has one."""


class Shape:
    """A closed figure in the plane."""

    def area(self):
        """Content of the figure, in square units."""


def undocumented():
    pass


def blank():
    """ """
'''


def golden(folder: Path) -> list[Artifact[Any]]:
    """The artifacts; their files lie in `folder`."""
    texts = folder / "texts"
    texts.mkdir()
    (texts / "sentences.jsonl").write_text(_rows())
    (texts / "note.txt").write_text("A short note that stands alone in a file. It says little, and ends here.")
    corpus = documents_from(texts, text_key="text", id_key="name", source_key="from").named("golden/documents")
    held_out = split_held_out(corpus, part="held_out", fraction=0.2).named("golden/split/held-out")
    rest = split_held_out(corpus, part="train", fraction=0.2).named("golden/split/train")
    # Half a document that occurs in another is 14 of its 32 shingles, which is the bound itself.
    unique = dedupe(rest, against=held_out, threshold=0.4375, shingle_words=5).named("golden/dedupe/train")
    overlap = dedupe(corpus, against=held_out).named("golden/dedupe/all")
    rules = QualityRules(min_words=12, min_sentences=2, max_top_2_gram=0.25)
    kept = quality_filter(unique, rules=rules).named("golden/filter")
    disjoint = check_disjoint(kept, held_out, fraction=0.2, threshold=0.4375, shingle_words=5)
    tokenizer = train_tokenizer(kept, vocabulary=400).named("golden/tokenizer")
    tokens = tokenize(kept, tokenizer).named("golden/tokens")
    # Documents have 44 to 195 tokens: most share a row of 160, many are a row of 46 or one token more.
    packing = [pack(tokens, sequence_length=length).named(f"golden/packing/{length}") for length in (160, 46)]
    recipe: dict[str, Any] = {"model": MODEL, "steps": 12, "warmup": 3, "batch_size": 4, "sequence_length": 32}
    state = train(tokens, **recipe, schedule="cosine", clip=0.5).named("golden/train/muon")
    adamw = train(tokens, **recipe, optimizer="adamw", schedule="linear", seed=1).named("golden/train/adamw")
    scores = evaluate(state, held_out, tokenizer).named("golden/evaluate")
    words = generate(adamw, tokenizer, prompts=("the ", "every river"), tokens=6).named("golden/generate/likeliest")
    drawn = generate(state, tokenizer, prompts=("",), tokens=5, temperature=1.0, seed=3).named("golden/generate/drawn")
    simple = baselines(kept, held_out, orders=(1, 3), zstd_level=3).named("golden/baselines")
    (folder / "numbers.bin").write_bytes(bytes(range(256)) * 5000)
    numbers = Source(
        LocalFile(folder / "numbers.bin"),
        sha256="7d471e4af16db5a30ce10aebbc29f5178b2edbad6c7dc2e8ff8ee6e4848a726f",
        name="deep/numbers.bin",
    )
    note = Source(LocalFile(texts / "note.txt"), name="note.txt")
    brought = download([numbers, note], workers=2).named("golden/download")
    docs = package_docs(packages=_distribution(folder / "installed")).named("golden/package-docs")
    return [scores, words, drawn, simple, overlap, docs, brought, *packing, disjoint.named("golden/disjoint")]


def _rows() -> str:
    """Sentences drawn by a generator of its own, with every kind of row that a reader meets."""
    vocabulary = VOCABULARY.split()
    state = 1
    texts = []
    for _ in range(160):
        sentences = []
        for _ in range(4):
            words = []
            for _ in range(9):
                state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
                words.append(vocabulary[(state >> 33) * len(vocabulary) >> 31])
            sentences.append(" ".join(words).capitalize() + ".")
        texts.append(sentences)
    # Copies of all, three and two quarters of a document, so that bounds of overlap have documents on both sides.
    shouted = [[sentence.upper() for sentence in one] for one in texts[40:60]]
    copies = [*texts[:12], *([*one, "Once more."] for one in texts[:40])]
    copies += [[*one[:kept], *other[kept:]] for kept in (3, 2) for one, other in zip(texts, texts[80:], strict=False)]
    repeated = [*(" ".join(sentences) for sentences in [*texts, *copies, *shouted]), "Too short.", "same words " * 20]
    rows = [
        json.dumps({"text": text, "name": f"row {place}", "from": "even" if place % 2 == 0 else "odd"})
        for place, text in enumerate(repeated)
    ]
    faulty = [json.dumps({"text": "", "name": "empty", "from": "even"}), json.dumps({"name": "no text"}), "not JSON"]
    return "\n".join([*rows, *faulty]) + "\n"


def _distribution(site: Path) -> Any:
    """Pins of a distribution that is installed in `site` alone, and so is the same on every machine."""
    package, information = site / "marin_golden_docs", site / "marin_golden_docs-1.0.dist-info"
    package.mkdir(parents=True)
    information.mkdir()
    contents = {"__init__.py": MODULE, "other.py": '"""Another module, one line long."""\n', "broken.py": "def (:\n"}
    record = ""
    for name, text in contents.items():
        (package / name).write_text(text, newline="\n")
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        record += f"{package.name}/{name},sha256={digest},{len(text)}\n"
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {DISTRIBUTION}\nVersion: 1.0\n")
    (information / "RECORD").write_text(record)
    sys.path.append(str(site))
    return pinned([DISTRIBUTION])
