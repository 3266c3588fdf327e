"""The hash behind keys and checksums: which one it is, and what it takes along."""

from __future__ import annotations

import hashlib
import runpy
import subprocess
import sys

from kdsl_core import digests


def test_which_hash() -> None:
    """BLAKE2b of 256 bits, of all that it was given so far."""
    found = digests.hash256(b"one")
    found.update(b"two")
    assert found.digest() == hashlib.blake2b(b"onetwo", digest_size=32).digest()
    assert len(found.digest()) == digests.DIGEST_BYTES


def test_where_python_keeps_it_elsewhere(monkeypatch) -> None:
    """Python's public name for it gives the same."""
    monkeypatch.setitem(sys.modules, "_blake2", None)
    elsewhere = runpy.run_path(digests.__file__)["hash256"]
    assert elsewhere(b"one").digest() == digests.hash256(b"one").digest()


def test_no_openssl() -> None:
    """A process that hashes does not load OpenSSL for it."""
    program = "import sys, kdsl_core.digests; assert not {'hashlib', '_hashlib'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
