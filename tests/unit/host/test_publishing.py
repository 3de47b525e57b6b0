"""Publishing images: allowed registries, the engine's answers, the written records, and SBOMs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from hwmatrix.app import publishing as publishing_command
from hwmatrix.app.publishing import publish
from hwmatrix.cli import main
from hwmatrix.errors import ConfigError, EngineError
from hwmatrix.host import images, publishing, sbom
from hwmatrix.host.base_image import BaseImage
from hwmatrix.host.source_repository import web_address
from hwmatrix.runner import packages

ROOT = Path(__file__).parents[3]
ID = "sha256:" + "ab" * 32
DIGEST = "sha256:" + "cd" * 32
FACTS = [
    {"kind": "system", "id": "debian", "version": "12"},
    {"kind": "deb", "name": "libstdc++6", "version": "12.2.0-14+deb12u1", "architecture": "amd64", "source": "gcc-12"},
    {"kind": "pypi", "name": "typing_extensions", "version": "4.16.0", "license": "PSF-2.0", "license_name": None},
    {"kind": "pypi", "name": "torch", "version": "2.13.0+cpu", "license": None, "license_name": "BSD-3-Clause"},
    {"kind": "pypi", "name": "PyYAML", "version": "6.0.3", "license": None, "license_name": None},
    {"kind": "npm", "name": "@sparticuz/chromium", "version": "147.0.0", "license": "MIT"},
]


def told(**labels: str) -> dict[str, Any]:
    given = {"org.opencontainers.image.version": "0.1.0", "org.opencontainers.image.revision": ""} | labels
    return {"Id": ID, "Created": "2026-11-20T08:00:00.123456789Z", "Size": 1000, "Config": {"Labels": given}}


def test_an_sbom_is_valid_by_the_schema_of_cyclonedx() -> None:
    text = sbom.document("hwmatrix/cpu:0.1.0", told(), FACTS, digest=DIGEST)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    about = found["metadata"]["component"]
    assert about["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert {"name": "hwmatrix:image:digest", "value": DIGEST} in about["properties"]
    assert found["metadata"]["timestamp"] == "2026-11-20T08:00:00+00:00"
    assert {part["purl"] for part in found["components"]} == {
        "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12",
        "pkg:pypi/typing-extensions@4.16.0",
        "pkg:pypi/torch@2.13.0%2Bcpu",
        "pkg:pypi/pyyaml@6.0.3",
        "pkg:npm/%40sparticuz/chromium@147.0.0",
    }
    licenses = {part["name"]: part.get("licenses") for part in found["components"]}
    assert licenses["typing_extensions"] == [{"expression": "PSF-2.0"}]
    assert licenses["torch"] == [{"license": {"name": "BSD-3-Clause"}}]
    assert licenses["PyYAML"] is None


def test_the_same_image_has_the_same_sbom() -> None:
    assert sbom.document("a:1", told(), FACTS) == sbom.document("a:1", told(), list(reversed(FACTS)))


def test_packages_of_this_interpreter() -> None:
    found = {fact["name"]: fact for fact in packages.python()}
    assert found["pytest"]["version"] == pytest.__version__
    assert len({name.lower() for name in found}) == len(found)


def test_packages_of_npm_and_the_system(tmp_path: Path) -> None:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "package.json").write_text('{"name": "onnxruntime-web", "version": "1.30.0", "license": "MIT"}')
    assert list(packages.npm(tmp_path)) == [{"kind": "npm", "name": "onnxruntime-web", "version": "1.30.0", "license": "MIT"}]
    release = tmp_path / "os-release"
    release.write_text('ID=debian\nVERSION_ID="12"\nNAME="Debian GNU/Linux"\n')
    assert packages.release(release) == {"kind": "system", "id": "debian", "version": "12"}
    assert packages.release(tmp_path / "none") == {"kind": "system", "id": None, "version": None}


@pytest.mark.parametrize("text", [None, "", "UNKNOWN", "Apache License\nVersion 2.0\n...", "x" * 64])
def test_a_license_text_is_not_a_license_name(text: str | None) -> None:
    assert packages._short(text) is None


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


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [{"status": "The push refers to repository [x]"}, {"status": "Pushing", "progressDetail": {"current": 1}, "id": "a"}],
            "without a digest",
        ),
        ([{"status": "Preparing", "id": "a"}, {"error": "denied: requested access to the resource is denied"}], "denied"),
        ([{"errorDetail": {"message": "EOF"}, "error": "EOF"}, {"aux": {"Digest": DIGEST}}], "EOF"),
        ([], "without a digest"),
    ],
)
def test_a_failed_push_is_reported(events: list[dict[str, Any]], expected: str) -> None:
    with pytest.raises(EngineError, match=expected):
        publishing._pushed(events, "x:1", lambda _line: None)


def test_a_push_returns_the_registry_s_digest() -> None:
    lines: list[str] = []
    events = [
        {"status": "The push refers to repository [x]"},
        {"status": "Pushing", "progressDetail": {"current": 1, "total": 2}, "id": "a"},
        {"status": "Pushed", "progressDetail": {}, "id": "a"},
        {"progressDetail": {}, "aux": {"Tag": "1", "Digest": DIGEST, "Size": 7}},
    ]
    assert publishing._pushed(events, "x:1", lines.append) == DIGEST
    assert lines == ["x:1: The push refers to repository [x]", "x:1: a Pushed"]


class View:
    """Records the output."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    detail = say


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An engine with the images of cpu and qnn. Returns the pushed images."""
    labels = {"sha256:cpu": {}, "sha256:qnn": {"org.hwmatrix.push": "never"}}
    done: list[str] = []

    def described(_engine: object, built: tuple[str, str, str], folder: Path) -> publishing.Described:
        assert folder == tmp_path
        return publishing.Described(target=built[0], tag=built[1], image_id=built[2], size=1, packages=2, sbom="s.json")

    def push(_engine: object, image: publishing.Described, prefix: str, *_: object) -> publishing.Described:
        done.append(image.target)
        return publishing.dataclasses.replace(image, pushed=f"{prefix}/{image.target}", digest=DIGEST)  # type: ignore[attr-defined]

    monkeypatch.setattr(publishing_command, "connect", lambda *_, **__: object())
    monkeypatch.setattr(publishing, "inspect", lambda _engine, image: {"Config": {"Labels": labels[image]}})
    monkeypatch.setattr(publishing, "describe", described)
    monkeypatch.setattr(publishing, "push", push)
    return done


BUILT = [("cpu", "hwmatrix/cpu:1", "sha256:cpu"), ("qnn", "hwmatrix/qnn:1", "sha256:qnn")]


def test_qnn_is_never_pushed(pushes: list[str], tmp_path: Path) -> None:
    view: Any = View()
    publish(BUILT, named=(), prefix="r.example/x", folder=tmp_path, environment={}, view=view)
    assert pushes == ["cpu"]
    assert "qnn: not pushed, the label org.hwmatrix.push=never forbids it" in view.said
    written = json.loads((tmp_path / "images.json").read_text())
    assert written["never_pushed"] == ["qnn"]
    assert [(one["target"], one["digest"], one["packages"]) for one in written["images"]] == [("cpu", DIGEST, 2), ("qnn", None, 2)]


def test_qnn_requested_by_name_is_refused_and_nothing_is_pushed(pushes: list[str], tmp_path: Path) -> None:
    view: Any = View()
    with pytest.raises(ConfigError, match=r"--targets qnn: the label org\.hwmatrix\.push=never"):
        publish(BUILT, named=["cpu", "qnn"], prefix="r.example/x", folder=tmp_path, environment={}, view=view)
    assert pushes == []
    assert not (tmp_path / "images.json").exists()


def test_qnn_may_be_described(pushes: list[str], tmp_path: Path) -> None:
    view: Any = View()
    publish(BUILT, named=["qnn"], prefix=None, folder=tmp_path, environment={}, view=view)
    assert pushes == []
    assert len(json.loads((tmp_path / "images.json").read_text())["images"]) == 2


def test_the_dockerfile_of_qnn_has_the_label() -> None:
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


def test_labels_that_only_the_build_knows() -> None:
    pulled = BaseImage(reference="python:3.11-slim-bookworm", digest=ID, reason="pulled", registry_digest=DIGEST)
    assert images._labels(pulled, "https://github.com/owner/name") == {
        "org.opencontainers.image.source": "https://github.com/owner/name",
        "org.opencontainers.image.base.name": "python:3.11-slim-bookworm",
        "org.opencontainers.image.base.digest": DIGEST,
    }
    assert images._labels(BaseImage(reference="hwmatrix/os:bookworm", digest=ID, reason="made here"), None) == {}


def test_an_image_that_must_not_be_pushed_is_refused_before_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["images", "--targets", "qnn", "--push", "registry.example/team", "--matrix", str(ROOT / "matrix.yaml")]
    assert main.main(arguments) == 2  # a unit test cannot build, so this happens before any engine is used
    assert "--targets qnn: the label org.hwmatrix.push=never forbids pushing it" in capsys.readouterr().err


def test_a_comment_about_the_label_is_not_the_label(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("# org.hwmatrix.push=never is what qnn has\nFROM scratch\n")
    publishing.refuse_declared({"cpu": tmp_path / "Dockerfile", "gone": tmp_path / "none"})
    (tmp_path / "Dockerfile").write_text("FROM scratch\nLABEL a=b \\\n      org.hwmatrix.push=never\n")
    with pytest.raises(ConfigError):
        publishing.refuse_declared({"cpu": tmp_path / "Dockerfile"})
