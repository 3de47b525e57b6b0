from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

docker = pytest.importorskip("docker")

from hwmatrix.errors import ImageBuildError  # noqa: E402 - after the check for the SDK
from hwmatrix.host import base_image  # noqa: E402
from hwmatrix.host.base_image import MADE_TAG  # noqa: E402
from hwmatrix.host.process import Finished  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from hwmatrix.host.engine import Engine

DEFAULT = "python:3.11-slim-bookworm"


class FakeClient:
    """An engine with some images."""

    def __init__(self, images: dict[str, str]) -> None:
        self._images, self.images, self.closed = images, self, False

    def has(self, images: dict[str, str]) -> None:
        self._images |= images

    def get(self, name: str) -> Any:
        if name not in self._images:
            raise docker.errors.ImageNotFound(name)
        return type("Image", (), {"id": self._images[name]})

    def close(self) -> None:
        self.closed = True


class FakeEngine:
    def __init__(self, images: dict[str, str] | None = None, path: str = "/nowhere") -> None:
        self.fake = FakeClient(images or {})
        self.environment = {"PATH": path}

    def client(self, **_: Any) -> FakeClient:
        return self.fake


@pytest.fixture(autouse=True)
def _no_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Finished(command=("docker", "pull"), code=1, output="pulling\nlookup registry: no such host")
    monkeypatch.setattr(base_image, "_pull", lambda *_: refused)


def resolve(engine: FakeEngine, requested: str | None = None) -> tuple[str, list[str]]:
    said: list[str] = []
    typed: Engine = engine  # type: ignore[assignment]
    return base_image.resolve(typed, requested=requested, default=DEFAULT, on_line=said.append), said


def test_a_local_image_needs_no_registry() -> None:
    found, said = resolve(FakeEngine({DEFAULT: "sha256:1", MADE_TAG: "sha256:2"}))
    assert found == DEFAULT
    assert said == [f"base image: {DEFAULT} (here already)"]


def test_a_requested_image_wins() -> None:
    found, _ = resolve(FakeEngine({DEFAULT: "sha256:1", "mine:1": "sha256:3"}), requested="mine:1")
    assert found == "mine:1"


def test_the_image_is_pulled_from_a_registry_that_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()

    def pull(*_: object) -> Finished:
        engine.fake.has({DEFAULT: "sha256:4"})
        return Finished(command=("docker", "pull"), code=0, output="")

    monkeypatch.setattr(base_image, "_pull", pull)
    found, _ = resolve(engine)
    assert found == DEFAULT


def test_a_base_that_was_built_here_needs_no_registry() -> None:
    engine = FakeEngine({MADE_TAG: "sha256:2"})
    found, said = resolve(engine)
    assert (found, said) == (MADE_TAG, [f"base image: {MADE_TAG} (built here before)"])
    assert engine.fake.closed


def test_a_base_is_built_if_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mmdebstrap").touch(mode=0o755)
    engine = FakeEngine({}, path=str(tmp_path))
    monkeypatch.setattr(base_image, "_make_base", lambda *_: engine.fake.has({MADE_TAG: "sha256:5"}))
    found, said = resolve(engine)
    assert found == MADE_TAG
    assert "no such host" in said[0]


def test_without_any_base_the_error_says_what_was_tried_and_what_to_install() -> None:
    with pytest.raises(ImageBuildError) as caught:
        resolve(FakeEngine({}))
    assert "mmdebstrap" in caught.value.advice
    assert "no such host" in caught.value.output
    assert "None" not in str(caught.value)


def test_a_requested_image_is_never_replaced() -> None:
    with pytest.raises(ImageBuildError, match="mine:1"):
        resolve(FakeEngine({DEFAULT: "sha256:1", MADE_TAG: "sha256:2"}), requested="mine:1")
