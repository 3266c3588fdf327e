"""`kdsl profile` with a stand-in for ncu, and without one."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kdsl_runtime import driver
from kdsl_runtime.cli import main
from kdsl_runtime.profile import ncu, single

KERNEL = '''\
import numpy as np

import kdsl_core as kd


@kd.kernel
def doubled(x: kd.Tensor["f32", "n"], y: kd.Tensor["f32", "n"], by: kd.f32):
    """y = x · by, in FOLDER."""
    i = kd.block_idx()[0] * 64 + kd.thread_idx()[0]
    y[i] = x[i] * by


def example_doubled():
    x = np.ones(256, np.float32)
    return {"grid": 4, "block": 64, "args": (x, np.empty_like(x), 2.0)}
'''
LINE = 1 + KERNEL.splitlines().index("    y[i] = x[i] * by")
LOADS = "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"
STORES = "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"
# Writes down how it was called, then answers as ncu does.
NCU = f"""\
#!{sys.executable}
import json, sys
words = sys.argv[1:]
with open({{log!r}}, "a") as log:
    log.write(json.dumps(words) + "\\n")
if "--query-metrics" in words:
    print("{LOADS.removesuffix(".sum")} Counter")
    print("{STORES.removesuffix(".sum")} Counter")
elif {{fails!r}}:
    sys.exit({{fails!r}})
elif "--page" in words:
    print('"File Path","/somewhere/kernels.py"')
    print('"Line No","Source","Address","Source","# Samples","L2 Theoretical Sectors Global"')
    print('"{LINE}","y[i] = x[i] * by","","","7","64"')
else:
    print('"ID","Metric Name","Metric Unit","Metric Value"')
    print('"0","{LOADS}","sector","32"')
    print('"0","{STORES}","sector","1,000"')
    print('"0","{ncu.DURATION}","ns","2500"')
"""


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    """A file with a kernel, where a Hopper GPU is."""
    chip = driver.Device(0, "H200", (9, 0), 132, 1 << 37, 232448)
    monkeypatch.setattr(driver, "device", lambda index=0: chip)
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    return path


def put_ncu(folder: Path, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> Path:
    """Put the stand-in on PATH; gives the file in which it writes its calls."""
    log, program = folder / "calls", folder / "bin" / "ncu"
    program.parent.mkdir()
    program.write_text(NCU.format(log=str(log), fails=fails), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return log


def run(*words: str, code: int = 0) -> str:
    """What the command prints."""
    result = CliRunner().invoke(main, ["profile", *words])
    assert result.exit_code == code, result.output
    return result.output


def test_both_sides_are_shown(file, tmp_path, monkeypatch):
    """Line by line and in total, with what the pair means."""
    put_ncu(tmp_path, monkeypatch)
    found = json.loads(run(f"{file}:doubled", "--json"))
    assert found["device"] == "H200" and found["ns"] == 2500
    loads, stores = (
        next(row for row in found["totals"] if row["names"][0] == name and len(row["names"]) < 3)
        for name in ("global_load_sectors", "global_store_sectors")
    )
    assert (loads["ours"], loads["theirs"], loads["verdict"]) == (32, 32, "equal")
    assert (stores["ours"], stores["theirs"], stores["verdict"]) == (32, 1000, "differs")
    (line,) = [r for r in found["lines"] if r["column"] == "L2 Theoretical Sectors Global"]
    assert (line["line"], line["ours"], line["theirs"]) == (LINE, 64, 64)
    assert found["samples"] == [{"file": "kernels.py", "line": LINE, "samples": 7}]


def test_table(file, tmp_path, monkeypatch):
    """The same for people."""
    put_ncu(tmp_path, monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    text = run(str(file))
    assert "doubled on H200: 2.50 µs" in text and f"kernels.py:{LINE}" in text
    assert "y[i] = x[i] * by" in text and "differs" in text
    assert re.search(r"L2 Theoretical Sectors Global +64 +64 +equal", text)
    assert re.search(r"samples of warps that were here +7", text)


def test_ncu_counts_the_kernel_alone(file, tmp_path, monkeypatch):
    """One launch of the kernel's name, by this Python, with the same arguments."""
    log = put_ncu(tmp_path, monkeypatch)
    run(f"{file}:doubled", "--spec", "x=f32[128]", "--spec", "y=f32[128]", "--spec", "by=1.5",
        "--grid", "2")  # fmt: skip
    _, metrics, page = map(json.loads, log.read_text().splitlines())
    for words in (metrics, page):
        assert words[words.index("--kernel-name") + 1] == "doubled"
        assert words[words.index("--launch-count") + 1] == "1"
        assert words[-4:-1] == [sys.executable, "-m", "kdsl_runtime.profile.single"]
    assert str(tmp_path) in page[page.index("--source-folders") + 1]
    asked = metrics[metrics.index("--metrics") + 1].split(",")
    assert [name for name in asked if "__" in name] == [LOADS, STORES, ncu.DURATION]
    kernel, stated = single.chosen(json.loads(page[-1]))
    assert kernel.__name__ == "doubled" and stated["grid"] == (2,) and stated["block"] == 64
    assert stated["kwargs"]["x"].shape == (128,) and stated["kwargs"]["by"] == 1.5


@pytest.mark.parametrize(
    ("said", "advice"), [("==ERROR== ERR_NVGPUCTRPERM", "allow counters"), ("oh no", "by hand")]
)
def test_an_ncu_that_fails(file, tmp_path, monkeypatch, said, advice):
    """What it said is told, with what to do."""
    put_ncu(tmp_path, monkeypatch, fails=said)
    text = run(str(file), code=1)
    assert "K757" in text and said in text and advice in text


def test_an_ncu_that_hangs(file, tmp_path, monkeypatch):
    """It is stopped."""
    put_ncu(tmp_path, monkeypatch)
    monkeypatch.setattr(ncu, "_TIME_LIMIT_S", 1e-4)
    assert "K757" in run(str(file), code=1)


def test_without_ncu(file, monkeypatch, tmp_path):
    """It is named, and so is what works without."""
    monkeypatch.setenv("PATH", str(tmp_path))
    text = run(str(file), code=1)
    assert "K756" in text and "kdsl inspect" in text


def test_without_a_gpu(tmp_path, monkeypatch):
    """The driver is asked before anything runs."""
    put_ncu(tmp_path, monkeypatch)
    monkeypatch.setattr(driver, "_LIBRARY", "libkdsl-no-such-driver.so.1")
    for function in (driver.require_driver, driver.device):
        function.cache_clear()
    text = run("no_such_file.py", code=1)
    driver.require_driver.cache_clear()
    assert "K801" in text
