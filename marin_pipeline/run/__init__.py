"""What runs when, and where.

The package has the name of its main function: `marin_pipeline.run(artifact)` is `marin_pipeline.run.driver.run`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package that can be called, since importing it puts it where the public function `run` is looked up."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from marin_pipeline.run import driver

        return driver.run(*args, **options)


sys.modules[__name__].__class__ = _Package
