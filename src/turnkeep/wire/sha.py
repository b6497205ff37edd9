"""The one digest used everywhere."""

import hashlib


def sha256_hex(data: bytes | memoryview) -> str:
    """SHA-256 as 64 lower-case hex digits."""
    return hashlib.sha256(data).hexdigest()
