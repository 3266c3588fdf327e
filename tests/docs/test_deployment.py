"""The files for a container platform: valid, and of commands and metrics that there are."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import jsonschema
import numpy as np
import pytest
import yaml

import kdsl_runtime as kr
from house import census
from house.census import ROOT
from kdsl_runtime import cli, tune

FOLDER = ROOT / "examples/production"
SCHEMAS = Path(__file__).parent / "schemas"
METRIC = re.compile(r"\bkdsl_\w+")
KDSL = re.compile(r"\bKDSL_\w+(?==)")


def documents(name: str) -> list[Any]:
    """What a file of YAML holds."""
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def validator(name: str) -> jsonschema.Draft202012Validator:
    """The validator of a schema, which is valid itself."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize(
    ("file", "schema"), [("cronjob.yaml", "kubernetes"), ("alerts.yaml", "prometheus_rules")]
)
def test_files_are_valid(file: str, schema: str) -> None:
    """Every document agrees with the schema of its kind."""
    found = [
        str(error) for part in documents(file) for error in validator(schema).iter_errors(part)
    ]
    assert found == []


MISTAKES = [
    ("kubernetes", "cronjob.yaml", ("kind",), "CronJobs"),
    ("kubernetes", "cronjob.yaml", ("spec", "schedule"), "at night"),
    ("kubernetes", "cronjob.yaml", ("spec", "concurencyPolicy"), "Forbid"),
    ("kubernetes", "cronjob.yaml", ("spec", "jobTemplate", "spec", "backoffLimit"), "0"),
    ("prometheus_rules", "alerts.yaml", ("groups", 0, "rules", 0, "for"), "1 hour"),
    ("prometheus_rules", "alerts.yaml", ("groups", 0, "rules", 0, "labels"), {}),
]


@pytest.mark.parametrize(("schema", "file", "path", "value"), MISTAKES)
def test_mistakes_are_refused(schema: str, file: str, path: tuple[Any, ...], value: Any) -> None:
    """A wrong kind, time, name or type does not pass."""
    document = documents(file)[-1]
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    assert not validator(schema).is_valid(document)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command `kdsl …` in a file or page."""
    joined = text.replace("\\\n", " ")
    for words in re.findall(r"^(?:\$ |RUN )?.*?\bkdsl ((?:\w+) [^|&;`\n]*)", joined, re.MULTILINE):
        yield shlex.split(words.split(" 2>")[0].split(" >")[0], comments=True)


@pytest.mark.parametrize("name", ["examples/production/Dockerfile", "docs/workflow.md"])
def test_commands_are_commands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each `kdsl …` of a block or instruction is a command with these options."""
    monkeypatch.setattr(click.Path, "convert", lambda self, value, *_: value)  # not there yet
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith(("$ ", "RUN ", "    &&"))]
    found = list(commands("\n".join(lines)))
    assert found
    for words in found:
        command = cli.main.commands[words[0]]
        assert command.make_context(words[0], words[1:]).params is not None


def test_the_image_copies_what_there_is() -> None:
    """Every source of a COPY from the checkout exists, and every stage that is named."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    for flag, source in re.findall(r"^COPY (--from=\w+ )?(\S+)", text, re.MULTILINE):
        there = flag.strip()[7:] in stages if flag else (ROOT / source).is_dir()
        assert there, source
    assert set(re.findall(r"^FROM (\w+) ", text, re.MULTILINE)) <= set(stages)
    assert stages[-1] == "service", "the last stage is what `docker build` makes unasked"


def test_the_image_installs_what_there_is() -> None:
    """Every path that pip gets is a package with those extras, for the image's Python."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (image,) = re.findall(r"^FROM python:(\d+\.\d+)", text, re.MULTILINE)
    (line,) = re.findall(r"^RUN pip install (.*)$", text, re.MULTILINE)
    found = [
        re.fullmatch(r"/src/(packages/[\w-]+)(?:\[(.*)\])?", word) for word in shlex.split(line)
    ]
    given: set[str] = set()
    needed: set[str] = set()
    for match in filter(None, found):
        project = tomllib.loads((ROOT / match[1] / "pyproject.toml").read_text())["project"]
        given.add(project["name"])
        needed |= {re.split(r"[^\w-]", need)[0] for need in project["dependencies"]}
        extras = set(match[2].split(",")) if match[2] else set()
        assert extras <= set(project.get("optional-dependencies", ()))
        oldest = re.search(r">=\s*3\.(\d+)", project["requires-python"])
        assert oldest is not None and int(oldest[1]) <= int(image.split(".")[1])
    assert given >= {name for name in needed if name.startswith("kdsl-")} | {"kdsl-runtime"}


def test_the_image_sets_what_is_read() -> None:
    """Each KDSL_… of an ENV is a variable that a package reads."""
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    stated = {name for line in re.findall(r"^ENV (.*)$", text, re.M) for name in KDSL.findall(line)}
    sources = "".join(path.read_text(encoding="utf-8") for path in census.package_files())
    assert stated and {name for name in stated if f'"{name}"' not in sources} == set()


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModuleType, Path]]:
    """The job's module and its state after a first night, with predicted times."""
    with pytest.MonkeyPatch.context() as patch:
        state = tmp_path_factory.mktemp("state")
        patch.setenv("KDSL_CACHE_DIR", str(state / "cache"))
        patch.syspath_prepend(str(FOLDER))
        import nightly
        import transposes

        manifest = state / "manifest.toml"
        with kr.record(manifest, target="sm_90a"):
            transposes.answer(np.zeros((64, 64), np.float32))
        patch.setattr(nightly, "PROBLEMS", nightly.PROBLEMS[1:])
        assert night(nightly, state)
        yield nightly, state
        for name in ("nightly", "transposes"):
            sys.modules.pop(name)


def night(job: ModuleType, state: Path) -> bool:
    """Whether all is as good as it was."""
    backend = tune.Predicted("NVIDIA H200")
    return bool(job.night(state, state / "manifest.toml", backend, 60.0))


def test_alerts_ask_for_metrics_that_there_are(nights: tuple[ModuleType, Path]) -> None:
    """Every metric of an alert is exported by the job, which has those of kdsl_runtime, too."""
    exported = set(METRIC.findall((nights[1] / "kdsl.prom").read_text()))
    asked = {
        metric
        for group in documents("alerts.yaml")[0]["groups"]
        for rule in group["rules"]
        for metric in METRIC.findall(rule["expr"])
    }
    assert len(asked) >= 6 and asked - exported == set()


def test_the_job_finds_what_got_worse(
    nights: tuple[ModuleType, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """An equal night is good; a faster time in the table, or a lost register, is a failure."""
    job, state = nights
    assert night(job, state)
    (table,) = state.glob("transpose-*.json")
    before = table.read_text()
    table.write_text(re.sub(r'"us": [\d.]+', '"us": 1.5', before))
    assert not night(job, state)
    assert '"us": 1.5' in table.read_text()  # the best time of all nights stays
    slowdown = re.search(
        r"^kdsl_nightly_slowdown.* ([\d.]+)$", (state / "kdsl.prom").read_text(), re.M
    )
    assert slowdown is not None and float(slowdown[1]) > 1.3
    table.write_text(before)
    lock = state / "kdsl.lock"
    lock.write_text(re.sub(r"registers = \d+", "registers = 8", lock.read_text()))
    assert not night(job, state)
    assert re.search(r"^kdsl_nightly_severity 5.0$", (state / "kdsl.prom").read_text(), re.M)
