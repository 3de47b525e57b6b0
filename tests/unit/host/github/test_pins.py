"""Updating pins: what is changed where, and answers that must be rejected."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from hwmatrix.errors import ConfigError, HwmatrixError
from hwmatrix.host.github import pins
from hwmatrix.host.github.jobs import AskingError
from hwmatrix.host.github.pins import newest_action, refresh, repinned_actions, repinned_base, repinned_constraints
from hwmatrix.host.github.render import ActionPin, action_pins
from hwmatrix.matrix.load import load

ROOT = Path(__file__).parents[4]
OLD, NEW = "a" * 40, "b" * 40
DIGEST = "sha256:" + "c" * 64
CONSTRAINTS = """\
# A comment
jinja2==3.1.6
torch==2.13.0 ; sys_platform != "linux"
torch==2.13.0+cpu ; sys_platform == "linux"
typing-extensions==4.16.0
"""


def api(version: object = "v9.1.0", kind: str = "commit", sha: object = NEW) -> Any:
    def asking(path: str) -> dict[str, Any]:
        if path.endswith("/releases/latest"):
            return {"tag_name": version}
        if "/git/ref/tags/" in path:
            return {"object": {"type": kind, "sha": OLD if kind == "tag" else sha}}
        assert path == f"/repos/actions/checkout/git/tags/{OLD}"
        return {"object": {"type": "commit", "sha": sha}}

    return asking


@pytest.mark.parametrize("kind", ["commit", "tag"])
def test_the_latest_release_is_the_commit_behind_its_tag(kind: str) -> None:
    assert newest_action("actions/checkout", api(kind=kind)) == ActionPin(commit=NEW, version="v9.1.0")


@pytest.mark.parametrize(
    "asking", [api(version="main"), api(version=None), api(version="v1 # x\n  run: evil"), api(sha="short"), api(sha=None)]
)
def test_invalid_answers_are_refused(asking: Any) -> None:
    with pytest.raises(ConfigError):
        newest_action("actions/checkout", asking)


def test_an_api_that_fails_is_an_error() -> None:
    def asking(_path: str) -> dict[str, Any]:
        raise AskingError("the API answers 502")

    with pytest.raises(HwmatrixError, match="actions/checkout: the API answers 502"):
        newest_action("actions/checkout", asking)


def test_actions_are_updated_in_place() -> None:
    text = resources.files("hwmatrix.host.github").joinpath("actions.yaml").read_text(encoding="utf-8")
    newest = {**action_pins(), "actions/checkout": ActionPin(commit=NEW, version="v9.1.0")}
    new, (change,) = repinned_actions(text, newest)
    assert (change.name, change.new) == ("actions/checkout", "v9.1.0")
    before, after = yaml.safe_load(text), yaml.safe_load(new)
    assert after.pop("actions/checkout") == {"commit": NEW, "version": "v9.1.0"}
    before.pop("actions/checkout")
    assert after == before


COMMON, AROUND = (str(path) for path in pins.CONSTRAINTS)
CUDA = "images/constraints-torch-cuda.txt"
TEXTS = {
    COMMON: CONSTRAINTS,
    AROUND: "--constraint constraints.txt\nzizmor==1.32.0\n",
    CUDA: "jinja2==3.1.6\nnvidia-nccl-cu13==2.29.3\ntorch===2.13.0\n",
}
RESOLUTION = "torch==2.13.0+cpu\ntyping_extensions==4.16.0  # via x\nzizmor==1.32.0\nhwmatrix @ file:///here\n"


def test_only_the_versions_of_a_resolution_are_updated() -> None:
    compiled = RESOLUTION.replace("2.13.0", "2.14.0").replace("1.32.0", "1.33.1") + "jinja2==3.2.0\n"
    found = repinned_constraints(TEXTS, compiled)
    text, changes = found[COMMON]
    assert text == CONSTRAINTS.replace("3.1.6", "3.2.0").replace("2.13.0", "2.14.0")
    assert [(change.name, change.old, change.new) for change in changes] == [
        ("jinja2", "3.1.6", "3.2.0"),
        ("torch", "2.13.0", "2.14.0"),
        ("torch", "2.13.0+cpu", "2.14.0+cpu"),
    ]
    assert found[AROUND][0] == TEXTS[AROUND].replace("1.32.0", "1.33.1")
    assert {change.file for change in found[AROUND][1]} == {AROUND}
    same = repinned_constraints(TEXTS, RESOLUTION + "jinja2==3.1.6\n")
    assert same == {path: (text, []) for path, text in TEXTS.items()}


def test_constraints_of_other_builds_are_updated_except_pytorch_itself() -> None:
    text, (change,) = repinned_constraints(TEXTS, RESOLUTION.replace("2.13.0", "2.14.0") + "jinja2==3.2.0\n")[CUDA]
    assert text == TEXTS[CUDA].replace("3.1.6", "3.2.0")
    assert (change.file, change.name) == (CUDA, "jinja2")


def test_what_only_another_python_needs_is_not_in_the_resolution() -> None:
    texts = TEXTS | {AROUND: TEXTS[AROUND] + 'pyyaml-ft==8.0.0 ; python_version == "3.13"\n'}
    assert repinned_constraints(texts, RESOLUTION + "jinja2==3.1.6\n") == {path: (text, []) for path, text in texts.items()}


def test_a_resolution_with_other_packages_is_refused() -> None:
    with pytest.raises(ConfigError, match="it also has surprise; it lacks jinja2"):
        repinned_constraints(TEXTS, RESOLUTION + "surprise==1\n")


def test_the_base_image_gets_its_digest() -> None:
    text = "version: 1\nimages:\n  base: python:3.11-slim-bookworm  # a comment\n"
    new, (change,) = repinned_base(text, 3, "python:3.11-slim-bookworm", DIGEST)
    assert new == text.replace("bookworm", f"bookworm@{DIGEST}")
    assert (change.old, change.new) == ("by tag", DIGEST[:19])
    assert repinned_base(new, 3, f"python:3.11-slim-bookworm@{DIGEST}", DIGEST) == (new, [])
    assert repinned_base("version: 1\n", None, "python:3.11-slim-bookworm", DIGEST) == ("version: 1\n", [])  # the default is our own
    for digest in ("", "sha256:1", f"{DIGEST}\nrun: evil"):
        with pytest.raises(ConfigError, match="is not a digest"):
            repinned_base(text, 3, "python:3.11-slim-bookworm", digest)


def test_either_all_files_are_written_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constraints = [str(path.relative_to(ROOT)) for path in (ROOT / "images").glob("constraints*.txt")]
    for name in ("matrix.yaml", *constraints, "harness/hwmatrix/host/github/actions.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(pins, "digest_of", lambda _image: DIGEST)
    monkeypatch.setattr(pins, "get", lambda address, _token: api()(address.replace("https://api.example", "")))
    (tmp_path / "other.txt").write_text("surprise==1\n", encoding="utf-8")
    same = tmp_path / "same.txt"
    same.write_text("".join((tmp_path / name).read_text(encoding="utf-8") for name in pins.CONSTRAINTS), encoding="utf-8")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def again(compiled: Path, *, write: bool) -> list[pins.Change]:
        loaded = load(tmp_path / "matrix.yaml")
        return refresh(loaded, tmp_path, api="https://api.example", token=None, compiled=compiled, write=write)

    with pytest.raises(ConfigError):
        again(tmp_path / "other.txt", write=True)
    assert {change.file for change in again(same, write=False)} == {"actions.yaml", "matrix.yaml"}
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    again(same, write=True)
    assert load(tmp_path / "matrix.yaml").spec.images.base.endswith(DIGEST)
    assert set(yaml.safe_load((tmp_path / "harness/hwmatrix/host/github/actions.yaml").read_text(encoding="utf-8"))) == set(action_pins())
