"""Each documented option of each target is run once, from matrix.yaml to the verdicts of a model and of the canaries."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from fault_runs import PROJECT, environment, rows, run, write_order
from where import SLOW

from hwmatrix.hardware.detector import detect
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import RunFacts, Selection, make_plan
from hwmatrix.records import Backend, Isolation
from hwmatrix.records.backends import Descriptor, descriptors

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch
VALUES: Final[dict[str, Any]] = {
    "attention": "eager",
    "compile": True,
    "precision_hints": False,
    "rewrite": True,
    "soc_model": 57,
    "executable": "/usr/bin/chromium",
    "assets": "/opt/hwmatrix",
}
"""A value for each option that is not one of a list. A device has its target's own."""
DEVICES: Final = {Backend.OPENVINO: "CPU", Backend.CUDA: 0, Backend.ROCM: 0}
FACTS: Final = RunFacts(
    run_id="options", created_at="2026-01-02T03:04:05", command="a test", hwmatrix_version="0", commit=None, isolation=Isolation.NONE
)
RUN: Final = """
import sys
from hwmatrix.runner.__main__ import main
plan, cache, out, *targets = sys.argv[1:]
for target in targets:
    if main(["run", "--plan", plan, "--cache", cache, "--out", out, "--target", target, "--host", "here", "--at-once", "2"]) != 0:
        sys.exit(f"{target} has no shard")
"""
"""Runs the targets in one process, which imports PyTorch once."""


def choices(descriptor: Descriptor) -> list[dict[str, Any]]:
    """Every documented value of every option, one at a time."""
    return [
        {name: value}
        for name, option in descriptor.every_option.items()
        for value in option.values or (VALUES.get(name, DEVICES.get(Backend(descriptor.name))),)
    ]


def test_every_option_has_a_value_here() -> None:
    for descriptor in descriptors():
        for chosen in choices(descriptor):
            ((name, value),) = chosen.items()
            assert descriptor.every_option[name].allows(value), f"{descriptor.name}: {name}"


def variants(*, slow: bool) -> dict[str, dict[str, Any]]:
    """Targets as in matrix.yaml that can run here without a browser, each with one option changed. ``slow`` ones compile each model."""
    listed = yaml.safe_load((PROJECT / "matrix.yaml").read_text(encoding="utf-8"))["targets"]
    found: dict[str, dict[str, Any]] = {}
    for descriptor in descriptors():
        target = next(each for each in listed.values() if each["backend"] == descriptor.name)
        missing = [module for module in descriptor.requires if importlib.util.find_spec(module) is None]
        if descriptor.in_browser or missing or not detect(descriptor.name).available:
            continue
        for number, chosen in enumerate(choices(descriptor)):
            if slow is not (descriptor.name in SLOW or "compile" in chosen):
                continue
            options = target.get("options", {}) | chosen
            found[f"{descriptor.name}-{number}"] = {**target, "options": options, "dtypes": target["dtypes"][:1], "more_dtypes": []}
    return found


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.long)])
def test_each_documented_option_gives_verdicts(tmp_path: Path, *, slow: bool) -> None:
    targets = variants(slow=slow)
    assert ("cpu-1" if slow else "cpu-0") in targets, "PyTorch is installed wherever this runs"
    whole = yaml.safe_load((PROJECT / "matrix.yaml").read_text(encoding="utf-8"))
    kept = {name: whole[name] for name in ("version", "sizes", "tolerances")}
    bert = whole["models"]["bert"] | {"weights": "recipe"}
    kept |= {
        "images": {"reference": next(iter(targets))},
        "targets": targets,
        "models": {"bert": bert},
        "suites": {"default": {"models": "all"}},
    }
    (tmp_path / "matrix.yaml").write_text(yaml.safe_dump(kept), encoding="utf-8")
    plan = make_plan(load(tmp_path / "matrix.yaml"), Selection(timing=False, generation=False), FACTS)
    order = write_order(tmp_path / "run", plan)
    exports = [event for event in run("bundles", order, "--at-once", "2", armed=False) if event["event"] == "export"]
    assert [event for event in exports if not event["ok"]] == []
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(order.plan), str(order.cache), str(order.shards), *targets],
        env=environment(armed=False),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    found = [row for shard in order.shards.glob("*.duckdb") for row in rows(shard, "SELECT target, role, status, message FROM cells")]
    told = {name: {row["role"]: row["status"] for row in found if row["target"] == name} for name in targets}
    expected = {name: {"canary_good": "pass", "canary_wrong": "mismatch", "model": "pass"} for name in targets}
    assert told == expected, json.dumps([row for row in found if row["status"] not in {"pass", "mismatch"}])
