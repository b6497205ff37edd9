"""Exports a store as Parquet in a process of its own, and prints the most memory that it took, in KiB."""

import re
import sys
from pathlib import Path

from turnkeep import open_store
from turnkeep.export.parquet import export_parquet

if __name__ == "__main__":
    with open_store(sys.argv[1], create=False) as store:
        for written in export_parquet(store, store.rollouts(), Path(sys.argv[2])):
            assert written.error is None
    peak = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())  # getrusage counts the parent's
    assert peak is not None
    print(peak[1])
