"""No SQLite connection is open across a fork.

SQLite counts its file locks per process, and a child inherits the counts without the locks: what the child then commits
through a connection of its own can be lost. The parent connects again at its next use.
"""

import os
import threading
import weakref
from typing import Protocol


class Forked(Protocol):
    """What must know of a fork of its process."""

    def before_fork(self) -> None:
        """Let nobody else in, and leave the connection."""
        ...

    def after_fork(self) -> None:
        """Let others in again."""
        ...


watched: weakref.WeakSet[Forked] = weakref.WeakSet()
_forking = threading.local()
"""What this thread holds while it forks: other threads may be forking, too."""


def _before_fork() -> None:
    _forking.held = []
    for each in sorted(watched, key=id):  # in one order, lest two threads wait for each other
        each.before_fork()
        _forking.held.append(each)


def _after_fork() -> None:
    for each in _forking.__dict__.pop("held", ()):
        each.after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
