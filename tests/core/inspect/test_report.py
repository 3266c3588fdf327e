"""Reports: counters beside the source, roofs of devices, pages and pictures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import kdsl_core as kd
from kdsl_core.inspect.chart import chart
from kdsl_core.inspect.devices import DEVICES
from kdsl_core.inspect.heat import bar
from kdsl_core.inspect.page import page
from kdsl_core.inspect.roofline import roofline

H200 = kd.inspect.device_of("NVIDIA H200")
WARPS = 4
VOID = ("meta", "br", "hr", "img", "link", "input")


@kd.kernel
def reverse(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"]):
    """y is x backwards and doubled, through shared memory; the barrier is missing."""
    tile = kd.smem(kd.f32, 128, name="tile")
    i = kd.thread_idx()[0]
    tile[i] = doubled(x[i])  # <- loads
    y[i] = tile[127 - i]  # <- stores


def doubled(value):
    """Twice as much & more than "before"."""
    return value + value  # <- adds


def made(**options: Any) -> kd.inspect.Report:
    """The report of one block."""
    x = np.arange(128, dtype=np.float32)
    return kd.inspect.report(reverse, grid=1, block=128, args=(x, np.zeros_like(x)), **options)


def line_of(report: kd.inspect.Report, text: str) -> Any:
    """The line of the kernel's file that has a text."""
    lines = (x for function in report.sources[0].functions for x in function)
    return next(line for line in lines if text in line.text)


def test_lines_have_their_counters() -> None:
    """The kernel and its helpers stand there whole, each line with what it did."""
    report = made()
    assert [function[0].text for function in report.sources[0].functions] == [
        "@kd.kernel",
        "def doubled(value):",
    ]
    assert line_of(report, "<- loads").counts["global_load_sectors"] == 16
    assert line_of(report, "<- stores").counts["global_store_sectors"] == 16
    assert line_of(report, "<- adds").counts["flops_f32"] == 128
    assert not line_of(report, "y is x backwards").counts
    lines = [x for source in report.sources for f in source.functions for x in f]
    for name in ("sectors", "wavefronts", "flops_f32"):
        assert sum(x.counts.get(name, 0) for x in lines) == report.totals[name]
    executed = sum(x.counts.get("instructions", 0) for x in lines)
    assert executed + WARPS == report.totals["instructions"]  # the end of the kernel has no line
    assert sum(line.heat for line in lines) == pytest.approx(1)


def test_hazards_are_collected() -> None:
    """A race is part of the report, and of its page."""
    report = made()
    assert [hazard.code for hazard in report.hazards] == ["race"]
    assert "Hazards (1)" in page(report) and "race: thread" in chart(report)
    assert not made(checks=()).hazards


def test_views_lie_beside_their_lines() -> None:
    """The IR and the PTX of a line are those of its operations."""
    report = made(views=("ir", "ptx"))
    where = (report.sources[0].file, line_of(report, "<- adds").number)
    assert any("arith.add" in text for text in report.listings["ir"][where])
    assert report.listings["ptx"][where][0].startswith("add.rn.f32")
    every = [text for texts in report.listings["ptx"].values() for text in texts]
    module = reverse.ptx(kd.spec("f32", 128), kd.spec("f32", 128), block=128, target="sm_90a")
    printed = {line.split()[0] for line in module.splitlines() if line.startswith("    ")}
    assert {text.split()[0] for text in every} <= printed


def test_what_is_unknown_is_refused() -> None:
    """K541: a device; K542: a view. Parts of a device's name are enough."""
    assert kd.inspect.device_of("h200") is H200 and kd.inspect.device_of(H200) is H200
    with pytest.raises(kd.ArgumentError, match=r"K541(?s:.*)no device(?s:.*)H200"):
        kd.inspect.device_of("TPU")
    with pytest.raises(kd.ArgumentError, match=r"K541(?s:.*)several devices"):
        kd.inspect.device_of("NVIDIA")
    with pytest.raises(kd.ArgumentError, match=r"K542(?s:.*)'sass'"):
        made(views=("sass",))


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_devices_are_whole(device: Any) -> None:
    """Each has a target, rates that grow with narrower types, and a source for them."""
    assert kd.target_of(device.target).shared_bytes < device.shared
    assert device.tensor["bf16"] > device.tensor["tf32"] > device.plain["f32"] / 2
    assert device.tensor["s8"] > device.tensor["f16"] and device.source
    # 128 lanes for f32 that multiply and add, but 64 on sm_80: within 10 % of the sheet's rate
    lanes = 64 if device.target == "sm_80" else 128
    assert device.sms * lanes * 2 * device.clock == pytest.approx(device.plain["f32"], rel=0.1)


def test_occupancy() -> None:
    """The scarcest of threads, registers, shared memory and blocks."""
    assert H200.occupancy(32, 256, 0) == (8, "threads")
    assert H200.occupancy(168, 384, 0) == (1, "registers")
    assert H200.occupancy(32, 128, 100 << 10) == (2, "shared memory")
    assert H200.occupancy(16, 32, 0) == (32, "blocks")


def test_the_nearest_roof_decides() -> None:
    """The largest time of a resource, reduced to the multiprocessors that have a block."""
    totals = {"tensor_flops_bf16": 989.4e9, "footprint_read_bytes": 2.4e9, "sectors": 1e12}
    full = roofline(totals, 132, H200)
    assert full.bound is not None and full.bound.name == "tensor core bf16"
    assert full.seconds == pytest.approx(1e-3) and full.busy == 1
    assert [roof.name for roof in full.roofs] == ["tensor core bf16", "DRAM"]
    assert full.share(full.roofs[1]) == pytest.approx(0.5)
    assert full.intensity == pytest.approx(989.4 / 2.4)
    half = roofline(totals, 66, H200)
    assert half.seconds == pytest.approx(2e-3) and half.roofs[1].seconds == full.roofs[1].seconds


def test_estimates_are_no_bounds() -> None:
    """What PTX counts may be the nearest roof, but not the least time."""
    line = roofline({"pipe_alu": 1e9, "sectors": 1e6}, 132, H200)
    assert line.roofs[0].name == "alu pipe" and line.roofs[0].estimated
    assert line.seconds == pytest.approx(32e6 / 4.8e12)
    assert "at least 6.67 µs, by DRAM (32 MB)" in str(line) and "alu pipe with about" in str(line)
    assert "nothing was counted" in str(roofline({}, 1, H200))


def test_bars() -> None:
    """A little heat is still seen, all of it fills the bar."""
    assert bar(0) == " " * 8 and bar(1) == "█" * 8 and bar(1e-6).strip() == "▏"
    assert all(len(bar(share / 50, 5)) == 5 for share in range(51))


class Balanced(HTMLParser):
    """Fails on a tag that is closed and was not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        """Note an element."""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.words.append(data)


def test_the_page_is_whole_and_fetches_nothing() -> None:
    """Every element is closed, the source is there letter for letter, and no address."""
    report = made(views=("ptx",))
    text = page(report)
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    shown = "".join(parser.words)
    for function in report.sources[0].functions:
        assert all(line.text in shown for line in function)
    assert "add.rn.f32" in shown and str(report.roofline) in shown
    assert not re.search(r"https?:|src=|<script|<link", text)
    assert "prefers-color-scheme:dark" in text


def test_the_picture_is_whole() -> None:
    """The SVG is XML, has each line once, and bars where there is heat."""
    report = made()
    root = ElementTree.fromstring(chart(report))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    lines = [line for function in report.sources[0].functions for line in function]
    for line in lines:
        assert not line.text.strip() or line.text in texts
    bars = list(root.iter("{http://www.w3.org/2000/svg}rect"))
    hot = [x for source in report.sources for f in source.functions for x in f if x.heat]
    assert len(bars) == 1 + len(hot)


def test_json_has_it_all() -> None:
    """Everything survives the way through JSON, and lines add up to the totals."""
    report = made(views=("ir",))
    values = json.loads(json.dumps(report.as_json()))
    assert values["totals"]["instructions"] == report.totals["instructions"]
    executed = sum(line["counts"]["instructions"] for line in values["lines"])
    assert executed + WARPS == values["totals"]["instructions"]
    assert values["hazards"][0]["code"] == "race"
    assert values["roofline"]["device"] == "NVIDIA H200"
    assert values["roofline"]["roofs"][0]["seconds"] > 0
    assert {entry["line"] for entry in values["listings"]["ir"]} >= {
        line_of(report, "<- adds").number
    }
