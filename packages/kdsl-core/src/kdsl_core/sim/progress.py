"""A progress bar for runs longer than two seconds, on a terminal only."""

from __future__ import annotations

import sys
import time

_PATIENCE_S = 2.0
_INTERVAL_S = 0.2
_WIDTH = 30


class Progress:
    """Shows blocks done and the time left on standard error; silent when that is no terminal."""

    def __init__(self, name: str, blocks: int, shown: bool | None) -> None:
        self._name = name
        self._blocks = blocks
        self._done = 0
        self._start = time.monotonic()
        self._next = self._start + _PATIENCE_S
        self._visible = False
        self._wanted = sys.stderr.isatty() if shown is None else shown

    def finish_blocks(self, count: int) -> None:
        """`count` more blocks have ended."""
        self._done += count
        self.beat()

    def beat(self) -> None:
        """Redraw when it is time."""
        if not self._wanted:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _INTERVAL_S
        self._visible = True
        sys.stderr.write("\r" + self.line(now - self._start))
        sys.stderr.flush()

    def line(self, elapsed: float) -> str:
        """The bar after `elapsed` seconds."""
        share = self._done / self._blocks
        bar = "█" * int(share * _WIDTH)
        left = f"{elapsed * (1 - share) / share:.0f} s left" if share else f"{elapsed:.0f} s"
        return (
            f"simulating {self._name} |{bar:<{_WIDTH}}| {self._done}/{self._blocks} blocks, {left} "
        )

    def close(self) -> None:
        """Take the bar away."""
        if self._visible:
            sys.stderr.write("\r" + " " * 100 + "\r")
            sys.stderr.flush()
