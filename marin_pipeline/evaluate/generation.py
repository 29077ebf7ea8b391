"""Text from a model: greedy or sampled, the same for the same seed.

Each new token is predicted from the last tokens that fit the model's context. The shape of the computation is fixed, so
it is compiled once whatever the prompts are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from marin_pipeline.core.errors import InputError
from marin_pipeline.evaluate.predictor import Predictor


def generate_tokens(
    predictor: Predictor,
    prompts: Sequence[Sequence[int]],
    *,
    end_of_document: int,
    vocabulary: int,
    tokens: int,
    length: int,
    temperature: float,
    seed: int,
    progress: Callable[[int, int], None],
) -> list[list[int]]:
    """Continuations of prompts, each ended early by an end of document.

    Args:
        prompts: token ids of each; a fresh context, which is an end of document, is put before them.
        vocabulary: ids of the tokenizer; a model may have more, and they are not chosen.
        tokens: most new tokens a prompt.
        length: context of the model.
        temperature: 0 takes the likeliest token, 1 samples from the model.
        seed: a prompt's choices depend on the seed and the prompt's place in the list, not on the other prompts.
        progress: told how many tokens of how many are made.

    Raises:
        InputError: for a negative number of tokens or a temperature that is not a number from 0 on.
    """
    if tokens < 1 or not 0 <= temperature < float("inf"):
        raise InputError(
            f"tokens={tokens}, temperature={temperature}: give at least 1 token and a finite temperature from 0 on"
        )
    streams = [[end_of_document, *prompt] for prompt in prompts]
    starts = [len(stream) for stream in streams]
    choosers = [np.random.default_rng([seed, index]) for index in range(len(prompts))]
    open_rows = list(range(len(prompts)))
    rows = -(-len(prompts) // predictor.rows) * predictor.rows
    for made in range(tokens):
        inputs, last = np.zeros((rows, length), np.int32), np.zeros(rows, np.int32)
        for row in open_rows:
            context = streams[row][-length:]
            inputs[row, : len(context)] = context
            last[row] = len(context) - 1
        logits = predictor.next_logits(inputs, last)[:, :vocabulary]
        for row in list(open_rows):
            token = _choose(logits[row], temperature, choosers[row])
            if token == end_of_document:
                open_rows.remove(row)
            else:
                streams[row].append(token)
        progress(made + 1, tokens)
        if not open_rows:
            break
    return [stream[start:] for stream, start in zip(streams, starts, strict=True)]


def _choose(logits: np.ndarray, temperature: float, chooser: np.random.Generator) -> int:
    """A token: the likeliest (the first of equals) at temperature 0, else a sample (Gumbel's trick)."""
    if temperature == 0:
        return int(np.argmax(logits))
    return int(np.argmax(logits.astype(np.float64) / temperature + chooser.gumbel(size=len(logits))))
