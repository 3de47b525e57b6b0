"""Real builds on this machine's engine. All tagged images are removed, except the base image."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tarfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from hwmatrix.errors import EngineError, ImageBuildError
from hwmatrix.host import base_image, images
from hwmatrix.host.engine import Engine, connect
from hwmatrix.matrix.load import load
from hwmatrix.records.backends import descriptor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hwmatrix.matrix.spec import MatrixSpec

pytestmark = pytest.mark.containers

ROOT = Path(__file__).parents[2]
SOURCE = "https://git.example/team/project"
MATRIX = """
version: 1
images: {reference: one}
sizes: {tiny: {}, full: {}}
tolerances: {float32: {relative_error: 1.0e-3, reason: a test}}
targets: {one: {backend: cpu, image: one, base: python}, two: {backend: cpu, image: two, base: python}}
models: {bert: {family: embedding, architecture: bert, class: BertModel}}
suites: {default: {}}
"""
BASE = """
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS python
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.pem python3 -c '\
import hashlib, pathlib; text = pathlib.Path("/run/secrets/pip.conf").read_text(); assert "sentinel" in text, "no secret"; \
pathlib.Path("/seen").write_text(hashlib.sha256(pathlib.Path("/run/secrets/ca.pem").read_bytes()).hexdigest())'
"""
TARGET = """
ARG BASE
FROM ${BASE}
COPY requirements-stamp /stamp
RUN --mount=type=bind,source=wheel,target=/wheel test -e /wheel/*.whl
"""


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        found = connect(dict(os.environ))
    except EngineError as error:
        pytest.skip(str(error))
    if found.builder is None:
        pytest.skip(found.builder_problem)
    return found


@pytest.fixture
def tags(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Tags that only this test uses, so that no image of the user is replaced; removed afterwards."""
    prefix = f"hwmatrix-test-{os.getpid()}"
    monkeypatch.setattr(images, "image_tag", lambda target: f"{prefix}/{target}:test")
    yield prefix
    with contextlib.closing(engine.client()) as client:
        for image in client.images.list():
            for tag in (tag for tag in image.tags if tag.startswith(f"{prefix}/")):
                client.images.remove(tag, force=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose images build within a second."""
    root = tmp_path / "project"
    shutil.copytree(ROOT / "harness", root / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    for name in ("README.md", "LICENSE"):
        (root / name).write_text("a test\n")
    files = {"constraints.txt": "", "base/python.txt": "", "base/Dockerfile": BASE, "requirements-stamp": str(time.time_ns())}
    for target in ("one", "two"):
        files |= {f"{target}/Dockerfile": TARGET, f"{target}/requirements.txt": ""}
    for name, text in files.items():
        path = root / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "matrix.yaml").write_text(MATRIX)
    return root


def base_of(engine: Engine, spec: MatrixSpec, on_line: Callable[[str], None] = str) -> str:
    return base_image.resolve(engine, requested=None, default=spec.images.base, on_line=on_line)


def build(project: Path, engine: Engine, targets: tuple[str, ...] = ("one", "two")) -> tuple[dict[str, images.BuiltImage], list[str]]:
    said: list[str] = []
    spec = load(project / "matrix.yaml").spec
    built = images.build_images(
        project_root=project,
        spec=spec,
        targets=targets,
        engine=engine,
        on_line=said.append,
        base=base_of(engine, spec, said.append),
        commit="0123abc",
        source=SOURCE,
    )
    return built, said


def with_sentinel(engine: Engine) -> Engine:
    """The engine, with an index in pip's settings whose password must not appear anywhere."""
    import dataclasses

    return dataclasses.replace(
        engine, environment={**engine.environment, "PIP_EXTRA_INDEX_URL": "https://me:sentinel-c0ffee@packages.invalid/simple"}
    )


def test_builds_reuse_unchanged_inputs_and_notice_changed_ones(engine: Engine, tags: str, project: Path) -> None:
    engine = with_sentinel(engine)
    first, said = build(project, engine)
    assert [image.rebuilt for image in first.values()] == [True, True]
    assert first["one"].tag == f"{tags}/one:test"
    assert first["one"].digest.startswith("sha256:")
    assert {line.split("]")[0] for line in said if line.startswith("[")} == {"[base python", "[one", "[two"}
    again, _ = build(project, engine)
    assert [image.rebuilt for image in again.values()] == [False, False]
    assert [image.digest for image in again.values()] == [image.digest for image in first.values()]
    (project / "harness/hwmatrix/extra.py").write_text("A = 1\n")
    (project / "images/requirements-stamp").write_text("changed")
    changed, _ = build(project, engine, ("one",))
    assert changed["one"].rebuilt


def test_another_checkout_that_takes_the_tags_changes_nothing(
    engine: Engine, tags: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checkouts of one version share the tags that people see. Each builds and runs on its own images."""
    built_stages = images._stages
    with contextlib.closing(engine.client()) as client:
        foreign = client.api.import_image_from_data(b"\0" * 1024, repository=f"{tags}/foreign", tag="test")
        assert foreign

        def stages_and_a_thief(*arguments: Any) -> Any:
            made = built_stages(*arguments)
            for target in ("base-python", "one"):
                client.images.get(f"{tags}/foreign:test").tag(f"{tags}/{target}", tag="test")
            return made

        monkeypatch.setattr(images, "_stages", stages_and_a_thief)
        built, _ = build(project, engine, ("one",))
        one = built["one"]
        assert client.images.get(one.content_tag).id == one.digest
        assert one.content_tag == f"{one.tag}-{one.digest.removeprefix('sha256:')[:12]}"
        names = {name for image in client.images.list() for name in image.tags if name.startswith(tags)}
    assert {name.rpartition(":")[2].partition("-")[2] for name in names if name.startswith(f"{tags}/one:")} == {
        "",
        one.digest.removeprefix("sha256:")[:12],
    }, "a build's own tag is left"


def test_secrets_reach_the_build_and_stay_out_of_the_image(engine: Engine, tags: str, project: Path, tmp_path: Path) -> None:
    built, said = build(project, with_sentinel(engine), ("one",))
    assert tags in built["one"].tag
    with contextlib.closing(engine.client()) as client:
        image = client.images.get(built["one"].tag)
        assert image.labels["org.opencontainers.image.source"] == SOURCE
        assert "sentinel-c0ffee" not in str(image.history())
        assert "sentinel-c0ffee" not in str(image.attrs)
        archive = tmp_path / "image.tar"
        with archive.open("wb") as file:
            file.writelines(image.save())
    assert "sentinel-c0ffee" not in "\n".join(said)
    assert occurrences(archive, b"sentinel-c0ffee") == []
    assert occurrences(archive, b"requirements-stamp") != []  # proves that the search includes the history


def occurrences(archive: Path, needle: bytes) -> list[str]:
    """The files of a saved image, including those in its layers, that contain the bytes."""
    found: list[str] = []
    with tarfile.open(archive) as outer:
        for member in outer:
            file = outer.extractfile(member)
            if file is None:
                continue
            content = file.read()  # layers of a saved image are uncompressed tar files, so a search covers all files in them
            if needle in content:
                found.append(member.name)
    return found


def test_a_failing_build_says_which_command_and_why(engine: Engine, tags: str, project: Path) -> None:
    (project / "images/two/Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}}\nRUN echo the-reason-{tags} && exit 7\n")
    with pytest.raises(ImageBuildError, match=f"the-reason-{tags}") as caught:
        build(project, with_sentinel(engine))
    assert caught.value.code not in {0, None}
    assert "two/Dockerfile" in " ".join(caught.value.command)
    assert "sentinel-c0ffee" not in str(caught.value)


def test_an_interrupt_ends_the_builds_and_leaves_nothing(engine: Engine, tags: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = project.parent / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    seconds = f"98{os.getpid()}"
    for target in ("one", "two"):
        (project / f"images/{target}/Dockerfile").write_text(f"ARG BASE\nFROM ${{BASE}}\nRUN sleep {seconds} && echo {target}-{tags}\n")
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        """Once both builds have come to their command: an engine that is starting one when it is told to stop may miss that."""
        end = time.monotonic() + 60
        while len(processes_with(seconds)) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        interrupted_at.append(time.monotonic())
        if not over.is_set():
            signal.pthread_kill(main, signal.SIGINT)

    interrupted_at: list[float] = []
    over = threading.Event()
    threading.Thread(target=interrupt, daemon=True).start()
    spec = load(project / "matrix.yaml").spec
    with contextlib.ExitStack() as after:
        after.callback(over.set)
        with pytest.raises(KeyboardInterrupt):
            images.build_images(
                project_root=project,
                spec=spec,
                targets=("one", "two"),
                engine=with_sentinel(engine),
                on_line=lambda _: None,
                base=base_of(engine, spec),
            )
    assert time.monotonic() - interrupted_at[0] < 60
    assert list(scratch.iterdir()) == []
    assert [child for child in psutil.Process().children(recursive=True) if "build" in command_of(child)] == []
    assert gone(seconds, within_s=15)


def command_of(process: psutil.Process) -> list[str]:
    """Its command; empty if it has ended, and its parent may not have asked for its end yet."""
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def processes_with(argument: str) -> list[psutil.Process]:
    """The processes with this argument. Those of a local engine are visible here."""
    return [process for process in psutil.process_iter(["cmdline"]) if argument in (process.info["cmdline"] or [])]


def gone(argument: str, *, within_s: float) -> bool:
    """Whether no process with this argument is left."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if not processes_with(argument):
            return True
        time.sleep(0.2)
    return False


def test_real_images_are_reused_and_run_without_root(engine: Engine) -> None:
    """The project's images under their normal tags, built as a user builds them, and reused if they exist."""
    if not (ROOT / "LICENSE").is_file():
        pytest.fail("the project has no LICENSE, and cannot be built")
    spec = load(ROOT / "matrix.yaml").spec
    targets = tuple(
        name for name, target in spec.targets.items() if not descriptor_of(target.backend).hardware.needed_here
    )  # the others take gigabytes
    said: list[str] = []
    base = base_of(engine, spec, said.append)
    built = images.build_images(project_root=ROOT, spec=spec, targets=targets, engine=engine, on_line=said.append, base=base)
    again = images.build_images(project_root=ROOT, spec=spec, targets=targets, engine=engine, on_line=said.append, base=base)
    assert {name: image.digest for name, image in again.items()} == {name: image.digest for name, image in built.items()}
    assert not any(image.rebuilt for image in again.values())
    with contextlib.closing(engine.client()) as client:
        for name, image in built.items():
            attributes = client.images.get(image.digest).attrs["Config"]
            assert attributes["User"] == "10001:10001"
            assert attributes["Entrypoint"] == ["python", "-m", "hwmatrix.runner"]
            assert attributes["Labels"]["org.opencontainers.image.title"] == f"hwmatrix {spec.targets[name].image}"
