"""A size is what a person wrote, or an error that says how to write one."""

from __future__ import annotations

import pytest

from marin_pipeline.store.sizes import MOST, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("20GB", 20 * 10**9),
        ("10 gb", 10 * 10**9),
        ("1.5 TiB", 3 * 2**39),
        ("1.5 TB", 1_500_000_000_000),
        ("500 MiB", 500 * 2**20),
        ("2e9", 2 * 10**9),
        ("2k", 2000),
        ("2KiB", 2048),
        ("7 B", 7),
        (" 1G ", 10**9),
        ("1Gi", 2**30),
        ("1 PB", 10**15),
        ("4.35GB", 4_350_000_000),
        ("0.1", 0),
        (str(MOST), MOST),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "GB",
            "-1",
            "-1GB",
            "ten",
            "1 GB 2",
            "1,000",
            "nan",
            "inf",
            "10 GX",
            "½GB",
            "1ib",
            "10iB",
            "5i",
            "1iB GB",
        ),
        *("١٠GB", "10\u212aB", "1e", "1e-3", "0x10", "1_000", "9" * 5000, "1." + "1" * 5000, "1e" + "9" * 5000),
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size; write it as in 500MB") as error:
        parse_size(text)
    assert len(str(error.value)) < 150


@pytest.mark.parametrize("text", [str(MOST + 1), "9" * 30, "1e99", "99999999PB"])
def test_what_nothing_can_have_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is more than there can be"):
        parse_size(text)
