"""Model configurations: their checks, their counts, and that they load no jax."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.models.config import LlamaConfig


def test_the_quick_start_model_has_the_parameters_of_its_formula():
    config = LlamaConfig(vocabulary=2048, width=128, layers=4, heads=2, feed_forward=352)
    block = 4 * 128 * 128 + 3 * 128 * 352 + 2 * 128
    assert config.parameters == 4 * block + 2 * 2048 * 128 + 128


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"width": 130}, "width=130"),
        ({"width": 12, "heads": 4}, "heads=4"),
        ({"key_value_heads": 3}, "key_value_heads=3"),
        ({"layers": 0}, "layers"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_by_name(change: dict[str, int], named: str):
    fields: dict[str, Any] = {"vocabulary": 64, "width": 16, "layers": 2, "heads": 4, "feed_forward": 32, **change}
    with pytest.raises(InputError, match=named):
        LlamaConfig(**fields)


def test_declaring_loads_no_numerical_library():
    code = (
        "import sys, steps.train, steps.evaluate, marin_pipeline.train.schedule, marin_pipeline.train.flops\n"
        "heavy = {'jax', 'numpy', 'haliax', 'equinox', 'optax', 'tensorstore', 'pyarrow', 'tokenizers', 'ray'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
