"""The command line of an experiment: every experiment file is a program (`main`).

A thin face: parsing, exit codes and printing; what is done is in `run`. The program `marin-pipeline` is in `tool`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import errno
import gc
import inspect
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, TypeGuard

from marin_pipeline.core.artifact import Artifact
from marin_pipeline.core.canonical import Tree, is_sequence
from marin_pipeline.core.errors import InputError, MarinError, UsageError
from marin_pipeline.core.experiment import Experiment
from marin_pipeline.core.grid import Grid, flattened
from marin_pipeline.core.projects import is_third_party
from marin_pipeline.core.secrets import redacted, redactor
from marin_pipeline.core.step import Step
from marin_pipeline.core.visible import OutputLost, say, visible

if TYPE_CHECKING:
    from marin_pipeline.run.driver import RunResult, Session
    from marin_pipeline.run.lock_file import Asked
    from marin_pipeline.run.plan import Plan
    from marin_pipeline.store.commit import Look

Target = Artifact[Any] | Grid[Any] | Sequence[Artifact[Any] | Grid[Any]] | Experiment
COMMANDS = ("run", "plan", "explain", "graph")
OPTIONS_OF = {
    "check": ("plan",),
    "lock": ("run",),
    "format": ("graph",),
    "json": ("run", "plan", "explain"),
    "quiet": ("run", "plan"),
    "verbose": ("run", "plan"),
    "max_parallel": ("run", "plan"),
    "fail_fast": ("run", "plan"),
    "single_writer": ("run", "plan"),
    "reason": ("run", "plan"),
}
"""Commands by each option that not all of them have; a plan takes what the run takes that it is the plan of."""

USAGE = """%(prog)s [run] [options] [name.argument=value ...]
       %(prog)s plan [--check] [--json] | explain STEP [--json] | graph [--format mermaid|svg]"""


class UnguardedMain(UsageError, SystemExit):
    """`main(...)` was reached while a file was being imported."""

    code = 2


def main(target: Target | Callable[..., Target]) -> None:
    """Run an experiment as a program, as its command line says. Does not return: exits with the designed code.

    Args:
        target: an artifact, a grid, a list of these, an `Experiment`, or a function that builds one of them; the
            function's typed parameters become options (`--scale tiny`).
    """
    writable_streams()
    caller = inspect.currentframe()
    _refuse_unguarded(caller.f_back if caller else None)
    worker = sys.modules.get("marin_pipeline.run.worker")
    if worker is not None and worker.is_worker():
        raise UnguardedMain(
            'main(...) was reached in a worker process; call it under `if __name__ == "__main__":` only'
        )
    leave(lambda: _experiment(target, sys.argv[1:]))


def writable_streams() -> None:
    """Output that cannot show a character, or that was closed, fails no run."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - it stays open until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _refuse_unguarded(frame: FrameType | None) -> None:
    """Other processes import the file to run its steps: a bare `main(...)` would start the experiment again there."""
    if frame is None or frame.f_code.co_name != "<module>":
        return
    file, line = frame.f_code.co_filename, frame.f_lineno
    remedy = f'{file}:{line}: main(...) runs when the file is imported; put it under `if __name__ == "__main__":`'
    if frame.f_globals.get("__name__") != "__main__":
        say(f"error: {remedy}", sys.stderr)
        raise UnguardedMain(remedy)
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    guarded = any(
        isinstance(node, ast.If)
        and "__name__" in ast.dump(node.test)
        and node.lineno <= line <= (node.end_lineno or line)
        for node in tree.body
    )
    if not guarded:
        say(f"error: {remedy}", sys.stderr)
        raise SystemExit(UsageError.exit_code)


def _is_interruption(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or what went wrong while that was on its way."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _show_plainly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An error that is meant to be read, in a program's own declarations: one message and where, no traceback."""
    if _is_interruption(error) and not hasattr(sys, "ps1"):
        raise SystemExit(130)
    if not isinstance(error, MarinError) or hasattr(sys, "ps1"):
        text = "".join(traceback.format_exception(kind, error, trace))
        if redactor() is None and visible(text) == text:
            sys.__excepthook__(kind, error, trace)
        else:
            say(redacted(text).removesuffix("\n"), sys.stderr)
        return
    say(redacted("\n".join([f"error: {error}", *_declared_at(trace)])), sys.stderr)
    raise SystemExit(UsageError.exit_code if isinstance(error, InputError) else error.exit_code)


_CALL_OF_STEP: CodeType = vars(Step)["__call__"].__code__


def _declared_at(trace: TracebackType | None) -> list[str]:
    """The line that says where in the user's own files an error was raised; none where no such file is known.

    That is the innermost frame in a real file outside of this package and of what is installed. What a step runs of its
    own to check a call, such as its `chain=`, is no place of the user's: the call is.
    """
    found: traceback.FrameSummary | None = None
    while trace is not None and trace.tb_frame.f_code is not _CALL_OF_STEP:
        code = trace.tb_frame.f_code
        file = Path(code.co_filename)
        if not file.is_relative_to(Path(__file__).parent) and file.is_file() and not is_third_party(file):
            found = traceback.FrameSummary(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next
    return [f"  in {found.filename}:{found.lineno}: {found.line}"] if found else []


# Every experiment imports `main` from here, so its declarations are covered before main() is reached.
sys.excepthook = _show_plainly


def leave(command: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its code; an error that is meant to be read is one message. Any other, as that of a
    program which opens a file that is not there, is shown with its traceback. After Ctrl-C or SIGTERM the code is 130,
    whatever went wrong then.
    """
    from marin_pipeline.run.interrupts import Interrupts

    interrupts = Interrupts()
    try:
        with interrupts.heard():
            code = command()
    except MarinError as error:
        say(redacted("\n".join([f"error: {error}", *getattr(error, "__notes__", ())])), sys.stderr)
        code = 130 if interrupts else error.exit_code
    except KeyboardInterrupt:
        code = 130
    except OutputLost as error:
        _tell_lost(error)
        code = 1
    except Exception as error:  # of any kind: what an interrupted call breaks with
        if not (interrupts or _is_interruption(error)):
            raise
        code = 130
    try:
        sys.stdout.flush()
    except OSError as error:
        _tell_lost(error)
        code = code or 1
    gc.freeze()  # what is alive goes with the process
    raise SystemExit(code)


def _tell_lost(error: OSError) -> None:
    """Say that the output could not be written, but not where its reader has gone, as in `... | head`."""
    if error.errno != errno.EPIPE:
        say(f"error: the output cannot be written: {error.strerror}", sys.stderr)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open until the end, and the last flush is quiet


# An experiment as a program -------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(redacted(message))


def _parser(builder: Callable[..., Target] | None) -> argparse.ArgumentParser:
    from marin_pipeline.run.options import add_options
    from marin_pipeline.run.parameters import add_parameters

    parser = _Parser(
        usage=USAGE,
        description=inspect.getdoc(builder) if builder else None,
        epilog="`plan` lists the steps; `explain STEP` shows a step's arguments; name.argument=value changes one.",
    )
    parser.add_argument(
        "words", nargs="*", help="a command, a step for `explain`, overrides name.argument=value", metavar="..."
    )
    add_options(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="with plan: exit with 3 when there is work, or it is not as the lock file says",
    )
    parser.add_argument("--lock", action="store_true", help="with run: write keys and digests to FILE.lock.json")
    parser.add_argument("--format", choices=("mermaid", "svg"), help="with graph (default: mermaid)")
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="failures only")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="name every step of a plan, and in a run each that is cached or blocked",
    )
    if builder is not None:
        add_parameters(parser, builder)
    return parser


@dataclass(frozen=True)
class _Words:
    """What the words of a command line ask for."""

    command: str
    step: str
    """The step that `explain` is asked about."""
    overrides: Sequence[str]

    @classmethod
    def read(cls, words: Sequence[str]) -> _Words:
        """Sort the words.

        Raises:
            UsageError: for a word that is no command and no override, or `explain` without a step.
        """
        overrides = [word for word in words if "=" in word]
        command, *others = [word for word in words if "=" not in word] or ["run"]
        if command not in COMMANDS:
            known = ", ".join(COMMANDS)
            raise UsageError(f"{command!r} is neither a command ({known}) nor an override name.argument=value")
        if command == "explain":
            if len(others) != 1:
                raise UsageError("explain: say which step, one at a time, as in `explain train`")
            return cls(command, others[0], overrides)
        if others:
            raise UsageError(f"{command} {others[0]}: {others[0]!r} is not an override name.argument=value")
        return cls(command, "", overrides)


def _experiment(target: Target | Callable[..., Target], argv: Sequence[str]) -> int:
    from marin_pipeline.core.source import unchanging
    from marin_pipeline.run.disclosure import refuse_typed

    parsed = _parser(target if _is_builder(target) else None).parse_intermixed_args(argv)
    out = stream_aside() if parsed.json else sys.stdout
    words = _Words.read(parsed.words)
    _refuse_options_of_others(words.command, parsed)
    with unchanging(), _without_collection():
        built = _declared(target, parsed)
        refuse_typed(argv)
        session = _session(built, words.overrides, parsed)
        looks = session.looks()
        plan = session.plan(looks)
        if words.command in ("plan", "explain") and plan.has_work:
            from marin_pipeline.run.readiness import with_refusals

            plan = with_refusals(plan, session.objects)
    if words.command == "run":
        asked = _asked(target, parsed, words) if parsed.lock else None
        return _run(session, plan, looks, parsed, built, out, asked)
    if words.command == "graph":
        from marin_pipeline.run import drawing

        say(drawing.svg(plan) if parsed.format == "svg" else drawing.mermaid(plan))
        return 0
    if words.command == "explain":
        from marin_pipeline.run.explanation import Explanation

        found = Explanation(plan, words.step, session.objects, session.earlier())
        say(json.dumps(found.tree()) if parsed.json else "\n".join(found.lines()), out)
        return 0
    return _plan(session, plan, parsed, out, _asked(target, parsed, words))


def _refuse_options_of_others(command: str, parsed: argparse.Namespace) -> None:
    """An option that a command does not have is refused, since whoever gave it meant another command.

    Raises:
        UsageError: naming the commands that have it.
    """
    if parsed.lock and (command != "run" or parsed.only or parsed.until):
        raise UsageError(
            "--lock goes with `run` of the whole experiment: leave --only, --until and other commands away"
        )
    for name, commands in OPTIONS_OF.items():
        if getattr(parsed, name) not in (None, False, "") and command not in commands:
            known = " and ".join(f"`{each}`" for each in commands)
            raise UsageError(f"--{name.replace('_', '-')} goes with {known}, and this is `{command}`; nothing was done")


def _plan(session: Session, plan: Plan, parsed: argparse.Namespace, out: TextIO, asked: Asked) -> int:
    from marin_pipeline.run.lock_file import Comparison, compare
    from marin_pipeline.run.screen import plan_lines

    lock, damage = _lock_path(), None
    try:
        compared = compare(lock, plan, asked, not (parsed.only or parsed.until))
    except InputError as error:
        compared, damage = Comparison(lock.name, ()), error
    transfers, unset = session.transfers(plan), session.unset_secrets(plan)
    trees: list[Tree] = []
    for key, planned in plan.nodes.items():
        of_step: list[Tree] = [each.tree() for each in unset if each.node.key == key]
        trees.append({**planned.tree(), **({"unset_secrets": of_step} if of_step else {})})
    trees += [{"transfer": tree}] if (tree := transfers.tree()) else []
    if parsed.check:
        trees += compared.trees()
    if parsed.json:
        lines = [json.dumps(tree) for tree in trees]
    elif parsed.quiet:
        lines = plan_lines(plan, session.title, session.objects.url, undone=True) if parsed.check else []
    else:
        lines = plan_lines(plan, session.title, session.objects.url, whole=parsed.verbose) + transfers.lines()
        lines += [each.line for each in unset]
    if not parsed.quiet or parsed.check:
        lines += [] if parsed.json else compared.lines(each=parsed.check, whole=not parsed.check)
    for line in lines:
        say(line, out)
    if parsed.json and compared.other:
        say("\n".join(compared.lines(each=False, whole=False)))
    if refusal := transfers.refusal():
        raise UsageError(refusal)  # as the run would, with the same exit code
    if damage is not None and parsed.check:
        raise UsageError(str(damage)) from damage
    if damage is not None:
        say(redacted(f"warning: {damage}"), sys.stderr)
    return 0 if not parsed.check or (compared.is_as_locked and not plan.has_work) else 3


def _lock_path() -> Path:
    """Where the lock file of this program lies."""
    from marin_pipeline.run.lock_file import lock_path

    return lock_path(Path(getattr(sys.modules["__main__"], "__file__", None) or "python").absolute())


def _asked(target: Target | Callable[..., Target], parsed: argparse.Namespace, words: _Words) -> Asked:
    """The arguments under which the experiment is declared, without options that are given as they are by default."""
    from marin_pipeline.run.lock_file import Asked
    from marin_pipeline.run.parameters import arguments, texts_given

    defaults = {
        parameter.name: parameter.default
        for parameter in (inspect.signature(target).parameters.values() if _is_builder(target) else ())
    }
    texts = texts_given(parsed)
    values = arguments(target, parsed) if _is_builder(target) else {}
    given = {name: text for name, text in texts.items() if values[name] != defaults[name]}
    return Asked.of(given, words.overrides)


@contextlib.contextmanager
def _without_collection() -> Generator[None]:
    """A plan makes many small objects and drops few: looking for garbage in between finds none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _declared(target: Target | Callable[..., Target], parsed: argparse.Namespace) -> Any:
    try:
        return _build(target, parsed)
    except MarinError as error:
        # What cannot be declared is wrong use, and nothing has been started.
        told = UsageError(str(error)) if isinstance(error, InputError) else error
        for line in _declared_at(error.__traceback__):
            told.add_note(line)
        if told is error:
            raise
        raise told from error


def _session(built: Any, overrides: Sequence[str], parsed: argparse.Namespace) -> Session:
    """The graph with its overrides, its store, and what the options ask for."""
    from marin_pipeline.run.driver import Session, experiment_id
    from marin_pipeline.run.options import Options

    targets = _targets(built)
    if overrides:
        from marin_pipeline.run.overrides import Override, apply

        try:
            targets = apply(targets, [Override.parse(word) for word in overrides])
        except InputError as error:
            raise UsageError(str(error)) from error
    options = Options.of(parsed)
    return Session.open(targets, options, experiment_id(), built.title if isinstance(built, Experiment) else "")


def _is_builder(target: object) -> TypeGuard[Callable[..., Target]]:
    return callable(target) and not isinstance(target, (Artifact, Experiment))


def _build(target: Target | Callable[..., Target], parsed: argparse.Namespace) -> Any:
    """The target, built from its options where it is a function."""
    from marin_pipeline.run.parameters import arguments

    return target(**arguments(target, parsed)) if _is_builder(target) else target


def _targets(built: Any) -> list[Artifact[Any]]:
    given: Any = built.targets if isinstance(built, Experiment) else built
    found = flattened(given if is_sequence(given) else [given])
    if not all(isinstance(each, Artifact) for each in found):
        raise UsageError(
            "main() takes an artifact, a grid, a list of them, an Experiment, or a function that builds one; "
            f"it got {built!r}"
        )
    return found


def stream_aside() -> TextIO:
    """Where JSON lines go: what stdout was. Whatever else is printed from here on, by whom ever, goes to stderr."""
    stream = sys.stdout
    if stream is sys.__stdout__:
        stream = open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115 - it stays open until the end
        os.dup2(2, 1)
    sys.stdout = sys.stderr
    return stream


def _stopped_line(result: RunResult) -> str:
    """What a run that was asked to stop has left."""
    from marin_pipeline.run.words import few

    waiting = sum(settled.outcome == "blocked" and not settled.stopped for settled in result.settled.values())
    left = [few(result.stopped)] if result.stopped else []
    left += [f"{waiting:,} had not begun"] if waiting else []
    return f"stopped: {'; '.join(left) or 'nothing was left to do'}; run the same command again to go on"


def _run(
    session: Session,
    plan: Plan,
    looks: Mapping[str, Look],
    parsed: argparse.Namespace,
    built: Any,
    out: TextIO,
    asked: Asked | None,
) -> int:
    from marin_pipeline.run.screen import JsonScreen, choose_screen

    verbosity = -1 if parsed.quiet else 1 if parsed.verbose else 0
    screen = JsonScreen(out) if parsed.json else choose_screen(verbosity)
    result = session.show(screen, plan, looks)
    if result.interrupted:
        say(_stopped_line(result), sys.stderr)
        return result.exit_code
    whole = verbosity >= 0 and not (parsed.json or parsed.only or parsed.until)
    if result.ok and whole and isinstance(built, Experiment) and built.report is not None:
        built.report(result.artifacts)
    if asked is not None and result.ok:
        from marin_pipeline.run.lock_file import lock_of, overwritten

        lock = _lock_path()
        told = overwritten(lock, asked)
        lock_of(result, asked).write(lock)
        if verbosity >= 0:
            say(f"lock     {lock.name}  {told}".rstrip())
    return result.exit_code
