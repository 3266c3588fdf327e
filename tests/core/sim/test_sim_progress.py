"""The progress bar: what it says, and that it is silent where nobody watches."""

from __future__ import annotations

import pytest

from kdsl_core.sim.progress import Progress


def test_line_counts_blocks_and_time() -> None:
    """A quarter done after three seconds: nine more."""
    bar = Progress("gemm", 8, shown=False)
    bar.finish_blocks(2)
    line = bar.line(3.0)
    assert "gemm" in line
    assert "2/8 blocks, 9 s left" in line
    assert line.count("█") == 7


def test_nothing_done_yet_has_no_estimate() -> None:
    """Before the first block ends there is no time left to tell."""
    assert "0/8 blocks, 3 s" in Progress("gemm", 8, shown=False).line(3.0)


def test_silent_at_first_and_off_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written in the first two seconds, nor where no terminal is."""
    for shown in (True, False, None):
        bar = Progress("gemm", 1, shown)
        bar.finish_blocks(1)
        bar.close()
    assert capsys.readouterr().err == ""


def test_bar_appears_and_goes_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two seconds the bar is drawn, and `close` takes it away."""
    now = [0.0]
    monkeypatch.setattr("kdsl_core.sim.progress.time.monotonic", lambda: now[0])
    bar = Progress("gemm", 2, shown=True)
    now[0] = 2.5
    bar.finish_blocks(1)
    assert "1/2 blocks" in capsys.readouterr().err
    bar.close()
    assert capsys.readouterr().err.strip() == ""
