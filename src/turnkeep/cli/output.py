"""What commands print: JSON for machines, tables for people, and errors as one readable paragraph."""

import io
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from turnkeep.errors import ConfigurationError, StoreError, TurnkeepError
from turnkeep.store.open import store_file
from turnkeep.wire.json import dumps

if TYPE_CHECKING:
    from rich.console import Console

EXIT_FOUND = 1
"""A check found something."""
EXIT_USAGE = 2
"""Arguments that cannot work."""
EXIT_FAILED = 3
"""Anything else that went wrong."""
EXIT_PIPE = 141
"""The reader of a pipe has had enough: no verdict, but what a shell says of a program that SIGPIPE ended."""
EXIT_TERMINATED = 143
"""SIGTERM came: what a shell says of a program that it ended."""


@contextmanager
def running() -> Iterator[None]:
    """The process of a command: what its output cannot write is escaped, and SIGTERM ends it as Ctrl-C does."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        yield
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer leaves with 1, which says that something was found
            sys.exit(EXIT_PIPE)
        raise


def print_json(value: Any) -> None:
    """One JSON value, on one line, exact."""
    print_bytes(dumps(value))


def print_bytes(text: bytes) -> None:
    """One line of bytes, as they are."""
    sys.stdout.buffer.write(text + b"\n")
    sys.stdout.flush()


def console(*, stderr: bool = False) -> "Console":
    """Where tables go."""
    from rich.console import Console

    class Printer(Console):
        def on_broken_pipe(self) -> None:
            """Pass the error on to `readable_errors`: Rich would leave with 1, which says that something was found."""
            raise  # Rich calls this where it has caught the error

    return Printer(stderr=stderr, highlight=False)


@contextmanager
def readable_errors(*, as_json: bool = False) -> Iterator[None]:
    """Turn an error of ours into one paragraph (or one JSON line) on standard error, and an exit code."""
    try:
        yield
    except ConfigurationError as error:
        _leave(error, EXIT_USAGE, as_json)
    except TurnkeepError as error:
        _leave(error, EXIT_FAILED, as_json)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
        sys.exit(EXIT_PIPE)
    except OSError as error:
        _leave(StoreError(str(error)), EXIT_FAILED, as_json)
    except KeyboardInterrupt:
        sys.exit(130)


def _leave(error: TurnkeepError, code: int, as_json: bool) -> NoReturn:
    if as_json:
        sys.stderr.buffer.write(dumps({"error": error.to_json()}) + b"\n")
    else:
        sys.stderr.write(f"turnkeep: {printable(str(error))}\n")
    sys.exit(code)


def shorten(text: str, length: int = 60) -> str:
    """One line of text, cut where it is too long."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def printable(text: str) -> str:
    """Text from a model made safe for a terminal: no control characters, no lone surrogates."""
    return "".join(char if char.isprintable() or char in "\n\t" else f"\\u{ord(char):04x}" for char in text)


def file_to_write(target: Path, url: str, *, force: bool) -> Path:
    """The file at `target`, or what that links to, for what comes out of the store at `url`.

    Raises ConfigurationError where nothing can be written there, or would destroy what --force does not mean.
    """
    place, store = target.resolve(), store_file(url)
    own = [] if store is None else [Path(f"{store}{end}").resolve() for end in ("", "-wal", "-shm", "-writers")]
    if place in own:
        raise ConfigurationError(f"{target} is the store itself", field="out")
    if place.is_dir():
        raise ConfigurationError(f"{target} is a folder: name a file", field="out")
    if place.exists() and not place.is_file():
        raise ConfigurationError(f"{target} is no file that can be replaced", field="out")
    if place.exists() and not force:
        raise ConfigurationError(f"{target} is there; --force writes over it", field="out")
    if not place.parent.is_dir():
        raise ConfigurationError(f"the folder of {target} does not exist", field="out")
    return place


def file_to_read(path: Path) -> Path:
    """The file at `path`. Raises ConfigurationError where there is none."""
    if not path.is_file():
        why = f"{path} is a folder: name its files" if path.is_dir() else f"there is no file {path}"
        raise ConfigurationError(why, field="FILE")
    return path


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Has an error of the system that names no file, such as that the disk is full, name `target`."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(target)
        raise


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """A file beside `target` that takes its place, whole and durable, where nothing went wrong. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)  # mkstemp's are for the owner alone
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def progress(total: int, words: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, where that is a terminal; gives the function that advances it."""
    from rich.progress import Progress

    bar = console(stderr=True)
    with Progress(console=bar, transient=True, disable=quiet or not bar.is_terminal) as shown:
        task = shown.add_task(words, total=total)
        yield lambda steps: shown.advance(task, steps)


def watched[Each](steps: Iterable[Each], total: int, words: str, *, quiet: bool) -> Iterator[Each]:
    """The steps, with a progress bar where there are several."""
    with progress(total, words, quiet=quiet or total < 2) as advance:
        for step in steps:
            yield step
            advance(1)
