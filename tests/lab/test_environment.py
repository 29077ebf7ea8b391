"""The recorded environment is told from the present one, found again, and built where it is not here."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from marin_pipeline.core.errors import InputError
from marin_pipeline.lab import environment
from marin_pipeline.lab.environment import Environment, PackageChange, choose, differences, find_python
from marin_pipeline.lab.verdict import machine_changes
from marin_pipeline.run.installed import packages
from marin_pipeline.store.origins import Origin, Package


def origin(installed: Mapping[str, Package], python: str = sys.version.split()[0]) -> Origin:
    return Origin("0" * 64, None, python, installed, {})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def told() -> list[str]:
    return []


def test_the_present_environment_is_taken_when_its_versions_are_the_recorded_ones(told: list[str]) -> None:
    found = choose(origin(packages()), "auto", (), told.append)
    assert (found.python, found.built, found.differences, told) == (sys.executable, False, (), [])


def test_what_is_installed_beyond_the_record_does_not_count(told: list[str]) -> None:
    recorded = dict(list(packages().items())[:3])
    assert not choose(origin(recorded), "auto", (), told.append).built


def test_packages_that_differ_are_named() -> None:
    old = {"a": Package("1", "x"), "b": Package("1", "x"), "c": Package("1", "x"), "d": Package("1", None)}
    new = {"a": Package("2", "x"), "c": Package("1", "y"), "d": Package("1", "y"), "e": Package("1", "x")}
    found = [str(each) for each in differences(old, new)]
    assert found == ["a 1 → 2", "b 1 → not installed", "c 1 (the same version, other files)"]


def test_the_present_environment_can_be_asked_for_and_what_differs_is_noted(told: list[str]) -> None:
    found = choose(origin({"iniconfig": Package("0.1", None)}), "present", (), told.append)
    assert not found.built
    assert "iniconfig 0.1 → " in " ".join(found.notes)


def test_other_versions_are_noted_before_other_files_and_wheels_of_another_python_are_counted() -> None:
    changes = (*(PackageChange(f"a{each}", "1", "1") for each in range(20)), PackageChange("numpy", "1", "2"))
    versions, files = Environment("python", False, changes).notes
    assert versions == "packages of other versions than the record: numpy 1 → 2"
    assert files.startswith("20 packages of the recorded version with other files (a0, a1, ")
    versions, files = Environment("python", False, changes, is_other_python=True).notes
    assert files == "20 packages of the recorded version with other files, as this is another Python"
    found = choose(origin(packages(), "2.7.1"), "present", (), lambda text: None)
    assert found.is_other_python


def test_what_pip_is_at_is_told(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "EVERY", 0.0)
    script = "print('Collecting a==1'); print('Installing collected packages: a')"
    assert environment._output_of([sys.executable, "-c", script], told.append) is None
    assert told == ["pip      Collecting a==1", "pip      all are here, and are being installed"]
    assert environment._output_of([sys.executable, "-c", "print('no'); raise SystemExit(1)"]) == "no\n"


def test_the_version_of_the_engine_is_no_difference_of_machines() -> None:
    old = {"versions": {"marin_pipeline": "0.1.0", "numpy": "1"}, "processor": "a"}
    new = {"versions": {"numpy": "2"}, "processor": "a"}
    assert [each.path for each in machine_changes([(old, new)])] == ["versions.numpy"]


def test_code_that_the_snapshot_has_is_not_looked_for(told: list[str]) -> None:
    recorded = {"marin-pipeline": Package("77", None), "mine": Package("1", None), "pip": Package("1", None)}
    assert choose(origin(recorded), "auto", {"mine"}, told.append).differences == ()


def test_a_python_that_is_not_here_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"Python 3\.99 is not here .* as python3\.99 on PATH"):
        find_python("3.99.1")


def test_a_python_of_the_minor_version_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    # A shim without its version, as pyenv leaves them, is passed over.
    broken = tmp_path / f"python{version}"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python(f"{version}.99") == sys.executable


def test_a_cache_that_is_a_file_is_an_error_that_names_it(cache: Path, told: list[str]) -> None:
    cache.write_text("a file")
    with pytest.raises(InputError, match=rf"{cache}/.*Not a directory.*XDG_CACHE_HOME"):
        choose(origin({"iniconfig": Package("0.1", None)}), "recorded", (), told.append)


@pytest.mark.parametrize("name", ["--index-url=http://x", "a @ file:///x", "-e .", "a\nb"])
def test_a_record_cannot_pass_options_to_the_installer(name: str, told: list[str]) -> None:
    with pytest.raises(InputError, match="cannot be one"):
        choose(origin({name: Package("1", None)}), "recorded", (), told.append)


def test_an_environment_whose_mark_could_not_be_written_is_built_again(
    told: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(path: Path, data: bytes) -> int:
        with path.open("wb") as file:
            file.write(data[:1])
        raise OSError(errno.ENOSPC, "No space left on device")

    recorded = origin({"no-such-package-of-ours": Package("1.0", None)})
    monkeypatch.setattr(environment, "_run", lambda command, folder: folder.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(environment, "_install", lambda *_: ["no-such-package-of-ours"])
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", half)
        with pytest.raises(InputError, match=r"cannot be kept \(No space left on device\); make room"):
            choose(recorded, "recorded", (), told.append)
    for _ in range(2):
        assert choose(recorded, "recorded", (), told.append).skipped == ("no-such-package-of-ours",)
    assert len([line for line in told if line.startswith("building")]) == 2


@pytest.mark.slow
def test_an_environment_of_the_recorded_versions_is_built_once(told: list[str], cache: Path) -> None:
    recorded = {"iniconfig": Package("2.0.0", "0" * 64), "no-such-package-of-ours": Package("1.0", None)}
    found = choose(origin(recorded), "auto", (), told.append)
    assert found.built
    assert found.skipped == ("no-such-package-of-ours",)
    assert [str(each) for each in found.differences if each.name == "iniconfig"] == [
        "iniconfig 2.0.0 (the same version, other files)"
    ]
    shown = subprocess.run(
        [found.python, "-c", "import importlib.metadata as m; print(m.version('iniconfig'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == "2.0.0"
    assert Path(found.python).is_relative_to(cache)
    told.clear()
    assert choose(origin(recorded), "auto", (), told.append) == found
    assert not [line for line in told if line.startswith("building")]
