"""Publishing images: allowed registries, and which images are pushed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_engine import engine

from hwmatrix.cli import main
from hwmatrix.errors import ConfigError
from hwmatrix.host import publishing
from hwmatrix.host.engine import Engine
from hwmatrix.host.source_repository import web_address
from hwmatrix.matrix.load import load

ROOT = Path(__file__).parents[3]
DIGEST = "sha256:" + "cd" * 32


@pytest.mark.parametrize(
    "prefix", ["registry.example/team", "localhost/x", "127.0.0.1:5000/a/b", "ghcr.io/owner/hwmatrix", "registry.example:443"]
)
def test_valid_registry_addresses(prefix: str) -> None:
    assert publishing.checked_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "team",
        "team/x",
        "registry.example/",
        "registry.example/Team",
        "https://registry.example/x",
        "a.b/x:1",
        "a.b/$(id)",
        "me:pw@a.b/x",
    ],
)
def test_invalid_registry_addresses(prefix: str) -> None:
    with pytest.raises(ConfigError):
        publishing.checked_prefix(prefix)


def test_an_invalid_address_is_reported_before_anything_is_built() -> None:
    assert main.main(["images", "--push", "team", "--matrix", str(ROOT / "matrix.yaml")]) == 2


class Client:
    """A docker client with images; one has a label from the image that it is built on."""

    def __init__(self) -> None:
        self.images = self

    def get(self, image_id: str) -> SimpleNamespace:
        return SimpleNamespace(labels={"org.hwmatrix.push": "Never"} if image_id == "sha256:built-on-qnn" else {})

    def close(self) -> None:
        pass


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An engine with the images of cpu and webgpu, and one that is built on qnn. Returns the names of the pushed images."""
    done: list[str] = []
    monkeypatch.setattr(Engine, "client", lambda _engine: Client())
    monkeypatch.setattr(publishing, "connect", lambda *_, **__: engine())
    monkeypatch.setattr(publishing, "push", lambda _engine, _image, reference, _on_line: done.append(reference) or DIGEST)
    return done


CPU, WEBGPU = ("cpu", "hwmatrix/cpu:1", "sha256:cpu"), ("webgpu", "hwmatrix/webgpu:1", "sha256:webgpu")


def publish(*built: tuple[str, str, str], **environment: str) -> list[str]:
    said: list[str] = []
    publishing.publish(built, prefix="r.example:5000/x", environment=environment, say=said.append, detail=said.append)
    return said


def test_images_are_pushed_by_target_and_version(pushes: list[str]) -> None:
    assert f"pushed r.example:5000/x/cpu:1 as {DIGEST}" in publish(CPU, WEBGPU)
    assert pushes == ["r.example:5000/x/cpu:1", "r.example:5000/x/webgpu:1"]


def test_an_image_that_is_built_on_one_with_the_label_is_refused_and_nothing_is_pushed(pushes: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"--targets mine: the label org\.hwmatrix\.push=never"):
        publish(CPU, ("mine", "hwmatrix/mine:1", "sha256:built-on-qnn"))
    assert pushes == []


@pytest.mark.usefixtures("pushes")
def test_the_attestation_step_gets_its_inputs(tmp_path: Path) -> None:
    output = tmp_path / "output"
    publish(CPU, GITHUB_OUTPUT=str(output))
    assert output.read_text(encoding="utf-8") == f"name=r.example:5000/x/cpu\ndigest={DIGEST}\n"
    publish(CPU, WEBGPU, GITHUB_OUTPUT=str(output))
    assert output.read_text(encoding="utf-8").count("digest=") == 1


@pytest.mark.usefixtures("pushes")
def test_an_engine_that_keeps_no_attestations_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any("without SBOM and provenance" in line for line in publish(CPU))
    monkeypatch.setattr(publishing, "connect", lambda *_, **__: engine(keeps_attestations=True))
    assert not any("without SBOM and provenance" in line for line in publish(CPU))


def test_the_images_that_a_release_pushes() -> None:
    loaded = load(ROOT / "matrix.yaml")
    assert publishing.pushable(loaded, loaded.spec.targets) == [
        "cpu",
        "openvino",
        "onnxruntime",
        "inductor",
        "executorch",
        "cuda",
        "rocm",
        "webgpu",
        "webnn",
    ]  # not qnn; mps has no image


def test_qnn_is_never_pushed() -> None:
    loaded = load(ROOT / "matrix.yaml")
    assert publishing.never_pushed(loaded, loaded.spec.targets) == ["qnn"]
    labeled = {path.parent.name for path in (ROOT / "images").glob("*/Dockerfile") if 'org.hwmatrix.push="never"' in path.read_text()}
    assert labeled == {"qnn"}


@pytest.mark.parametrize(
    ("remote", "expected"),
    [
        ("https://github.com/owner/name.git", "https://github.com/owner/name"),
        ("https://me:t0ken@github.com/owner/name", "https://github.com/owner/name"),
        ("git@github.com:owner/name.git", "https://github.com/owner/name"),
        ("ssh://git@git.example/owner/name.git", "https://git.example/owner/name"),
        ("https://git.example:8443/owner/name", "https://git.example:8443/owner/name"),
        ("/srv/git/name.git", None),
        ("", None),
    ],
)
def test_the_source_is_an_address_without_a_login(remote: str, expected: str | None) -> None:
    assert web_address(remote) == expected


def test_an_image_that_must_not_be_pushed_is_refused_before_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["images", "--targets", "qnn", "--push", "registry.example/team", "--matrix", str(ROOT / "matrix.yaml")]
    assert main.main(arguments) == 2  # a unit test cannot build, so this happens before any engine is used
    assert "--targets qnn: the label org.hwmatrix.push=never forbids pushing it" in capsys.readouterr().err


def test_a_comment_about_the_label_is_not_the_label(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text((ROOT / "matrix.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    file = tmp_path / "images" / "cpu" / "Dockerfile"
    file.parent.mkdir(parents=True)
    (file.parent / "requirements.txt").touch()
    file.write_text("# org.hwmatrix.push=never is what qnn has\nFROM scratch\n")
    assert publishing.never_pushed(load(tmp_path / "matrix.yaml"), ["cpu", "openvino"]) == []
    file.write_text("FROM scratch\nLABEL a=b \\\n      org.hwmatrix.push=never\n")
    assert publishing.never_pushed(load(tmp_path / "matrix.yaml"), ["cpu", "openvino"]) == ["cpu"]
