"""The strict type checker accepts good use and refuses documents where tokens are expected."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.conftest import ROOT


def test_the_strict_checker_accepts_good_use_and_refuses_bad() -> None:
    files = [str(ROOT / "tests" / "typing" / name) for name in ("accepted.py", "refused.py")]
    command = [sys.executable, "-m", "pyright", "--outputjson", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["generalDiagnostics"] == []
    assert report["summary"]["filesAnalyzed"] == 2
    assert (ROOT / "tests" / "typing" / "refused.py").read_text().count("# pyright: ignore[") == 12
