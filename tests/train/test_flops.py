"""The FLOPs count against a sum made by hand."""

from __future__ import annotations

from marin_pipeline.models.config import LlamaConfig
from marin_pipeline.train.flops import forward_flops, training_flops


def test_the_count_is_that_of_the_products_one_by_one():
    config = LlamaConfig(vocabulary=10, width=4, layers=1, heads=2, feed_forward=6, key_value_heads=1)
    # Two positions. Query and output 4x4 each, key and value 4x2 each, feed-forward three of 4x6, head 4x10;
    # three pairs seen through the mask, two heads of size 2, for scores and for mixtures.
    products = 2 * (4 * 4 * 2 + 4 * 2 * 2 + 3 * 4 * 6 + 4 * 10) + 2 * 3 * 2 * 2
    assert forward_flops(config, 2) == 2 * products
    assert training_flops(config, 2, 5) == 3 * 5 * 2 * products
