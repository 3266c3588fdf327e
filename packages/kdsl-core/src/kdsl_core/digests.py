"""The hash behind kdsl's keys and checksums: BLAKE2b of 256 bits, which Python has itself.

`hashlib` also loads OpenSSL, which takes a start-up longer than all that it hashes; and SHA-256
without OpenSSL takes six times as long for a megabyte (`docs/facts.md`).
"""

from __future__ import annotations

from functools import partial

try:
    from _blake2 import blake2b
except ImportError:  # a Python that keeps it elsewhere
    from hashlib import blake2b

DIGEST_BYTES = 32

hash256 = partial(blake2b, digest_size=DIGEST_BYTES)
"""A hash of the bytes given so far: `hash256(data)`, then `.update(more)` and `.hexdigest()`."""
