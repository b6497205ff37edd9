"""A folder that appears whole or not at all: written under another name beside it, then renamed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnkeep.errors import ConfigurationError


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Gives an empty folder that becomes `target`, durable, where nothing went wrong, and vanishes otherwise.

    Raises ConfigurationError where `target` is there already, or the folder it is to stand in is not; OSError.
    """
    check_target(target)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.absolute().parent))
    try:
        yield staging
        for path in (*staging.iterdir(), staging):
            _sync(path)
        umask = os.umask(0)
        os.umask(umask)
        staging.chmod(0o777 & ~umask)  # mkdtemp's are for the owner alone
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync(target.absolute().parent)


def check_target(target: Path) -> None:
    """Raise ConfigurationError where no new folder can be made of that name."""
    if os.path.lexists(target):
        raise ConfigurationError(f"{target} is there already; an export makes a new folder", field="out")
    if not target.absolute().parent.is_dir():
        raise ConfigurationError(f"the folder of {target} does not exist", field="out")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
