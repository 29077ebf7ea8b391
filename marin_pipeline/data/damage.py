"""What is said of an output whose files are not those that were committed: what is wrong with them, and one remedy."""

from __future__ import annotations

from marin_pipeline.core.errors import CorruptOutput, InputError


def state(error: CorruptOutput | InputError) -> str:
    """Whether a file is missing or damaged, with what the store said of it; its remedy is left out."""
    text, _, remedy = str(error).rpartition("; ")
    said = text if "--force" in remedy else str(error)
    is_there = isinstance(error, CorruptOutput) and not isinstance(error.__cause__, FileNotFoundError)
    return f"{'damaged' if is_there else 'missing'} ({said})"


def remedy(output: object) -> str:
    """What to do about an output, by its key where it has one."""
    key = str(getattr(output, "key", ""))[:8]
    command = f"marin-pipeline verify --level full {key}".rstrip()
    return f"`{command}` says what has changed; then run the step that made it again with --force"
