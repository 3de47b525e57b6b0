from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from fake_engine import engine

from hwmatrix.errors import ConfigError, ImageBuildError
from hwmatrix.host import images
from hwmatrix.host.pip_settings import PipSettings
from hwmatrix.host.requirements import layers
from hwmatrix.matrix.load import load

ROOT = Path(__file__).parents[3]
BASE = "base:1"
CONSTRAINTS = ROOT / "images/constraints.txt"
ALL_CONSTRAINTS = sorted((ROOT / "images").glob("constraints*.txt"))
BUILDS = [path for path in ALL_CONSTRAINTS if path.stem.startswith("constraints-torch-")]
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))
TARGETS = [path for path in DOCKERFILES if path.parent.name != "base"]


def names(path: Path) -> set[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    found = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines if line and not line.startswith("-"))
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match}


def test_the_base_installs_the_harness_s_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.sub(r"[-_.]+", "-", re.split(r"[<>=!~ \[;]", line)[0]).lower() for line in project["dependencies"]}
    assert names(ROOT / "images/base/python.txt") == declared


@pytest.mark.parametrize("path", ALL_CONSTRAINTS, ids=lambda path: path.stem)
def test_every_constraint_is_an_exact_version(path: Path) -> None:
    exact = re.compile(r'[a-z0-9._-]+={2,3}[0-9][^ <>=]*( ; (sys_platform [!=]= "linux"|python_version == "3[.][0-9]+"))?')
    for line in path.read_text().splitlines():
        assert not line or line.startswith(("#", "--constraint ")) or exact.fullmatch(line), line


def pins(path: Path) -> dict[str, str]:
    lines = (line.split(" ;")[0] for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return dict(re.split("={2,3}", line) for line in lines)


@pytest.mark.parametrize("path", BUILDS, ids=lambda path: path.stem)
def test_the_constraints_differ_only_in_the_build_of_pytorch(path: Path) -> None:
    common, own = pins(CONSTRAINTS), pins(path)
    assert {name: own[name] for name in own.keys() & common.keys() - {"torch"}} == {
        name: common[name] for name in own.keys() & common.keys() - {"torch"}
    }
    assert own["torch"].split("+")[0] == common["torch"].split("+")[0]


def test_the_builds_of_pytorch() -> None:
    assert re.search(r"^torch===[0-9.]+$", (ROOT / "images/constraints-torch-cuda.txt").read_text(), re.MULTILINE)
    assert re.search(r"^torch==[0-9.]+\+rocm[0-9.]+$", (ROOT / "images/constraints-torch-rocm.txt").read_text(), re.MULTILINE)
    assert "--extra-index-url ${TORCH_INDEX}" in (ROOT / "images/base/torch-rocm.index.txt").read_text()
    assert "torch-rocm" in load(ROOT / "matrix.yaml").spec.images.indexes


def test_every_requirement_is_pinned_in_exactly_one_place() -> None:
    spec = load(ROOT / "matrix.yaml").spec
    for target in spec.targets.values():
        for layer in layers(ROOT, base=target.base, image=target.image):
            for path in filter(None, (layer.requirements, layer.index_file)):
                assert names(path) <= names(layer.constraints), path
                assert "==" not in path.read_text(), path


def test_the_harness_is_the_same_on_every_base() -> None:
    found = {layers(ROOT, base=base, image="cpu")[0].digest for base in ("torch-cpu", "torch-cuda", "torch-rocm")}
    assert len(found) == 1
    assert layers(ROOT, base="torch-cuda", image="cuda")[2].constraints.name == "constraints-torch-cuda.txt"


def test_linux_gets_pytorch_for_cpus() -> None:
    assert re.search(r'^torch==[0-9.]+\+cpu ; sys_platform == "linux"$', CONSTRAINTS.read_text(), re.MULTILINE)
    assert "https://download.pytorch.org/whl/cpu" in (ROOT / "images/base/torch-cpu.index.txt").read_text()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.parent.name)
def test_a_dockerfile_needs_no_registry_and_keeps_no_secret(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"^# *syntax=", text, re.MULTILINE)
    for step in re.findall(r"^RUN (?:.*\\\n)*.*$", text, re.MULTILINE):
        if "pip install" in step and "--no-index" not in step:
            assert "--mount=type=secret,id=pip.conf" in step
            assert "--mount=type=secret,id=ca.pem" in step
            assert "--constraint /opt/hwmatrix/constraints.txt" in step


@pytest.mark.parametrize("path", TARGETS, ids=lambda path: path.parent.name)
def test_a_target_is_not_root_offline_and_has_the_harness_last(path: Path) -> None:
    text = path.read_text()
    *_, last = re.findall(r"^RUN (?:.*\\\n)*.*$", text, re.MULTILINE)
    assert "/wheel/*.whl" in last
    assert "--no-deps --no-index" in last
    assert re.findall(r"^USER .*$", text, re.MULTILINE) == ["USER 10001:10001"]
    assert "HF_HUB_OFFLINE=1" in text
    assert text.index("ARG REVISION") > text.index(last)


def test_every_target_of_the_matrix_has_its_files() -> None:
    spec = load(ROOT / "matrix.yaml").spec
    for target in spec.targets.values():
        found = layers(ROOT, base=target.base, image=target.image)
        assert [layer.name for layer in found] == list(dict.fromkeys(["python", target.base, target.image]))
        assert (ROOT / "images" / target.image / "Dockerfile").is_file()
        assert f"AS {target.base}\n" in (ROOT / "images/base/Dockerfile").read_text()


def test_all_missing_requirements_are_named() -> None:
    with pytest.raises(ConfigError) as caught:
        layers(ROOT, base="torch-abacus", image="abacus")
    assert len(caught.value.problems) == 2
    assert "torch-abacus.txt" in str(caught.value)


def test_a_layer_s_digest_depends_on_its_content(tmp_path: Path) -> None:
    for name in ("constraints.txt", "base/python.txt", "cpu/requirements.txt"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    before = [layer.digest for layer in layers(tmp_path, base="python", image="cpu")]
    assert before == [layer.digest for layer in layers(tmp_path, base="python", image="cpu")]
    (tmp_path / "images/cpu/requirements.txt").write_text("numpy")
    after = [layer.digest for layer in layers(tmp_path, base="python", image="cpu")]
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)


def test_the_host_s_network_is_used_only_if_a_build_needs_it() -> None:
    loopback = PipSettings(lists={"find-links": ("http://127.0.0.1:1/x/",)})
    assert images._network(engine(), PipSettings()) == ()
    assert images._network(engine(), loopback) == ("--network=host",)
    assert images._network(engine(networks=frozenset({"host", "null"})), PipSettings()) == ("--network=host",)


def test_proxies_are_passed_without_printing_their_values() -> None:
    options = images._proxies(engine(environment={"HTTPS_PROXY": "http://me:hunter2@proxy:3128"}))
    assert options == ("--build-arg", "HTTPS_PROXY", "--build-arg", "NO_PROXY", "--build-arg", "no_proxy")
    assert images._proxies(engine()) == ()


def test_a_pushed_image_gets_attestations_if_the_engine_keeps_them() -> None:
    assert images.attestations(engine(keeps_attestations=True)) == ("--sbom=true", "--provenance=mode=min")
    assert images.attestations(engine()) == ()


def test_secrets_are_private_files_that_are_removed_after_the_block(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("x")
    with images._secrets(PipSettings(single={"index-url": "https://me:hunter2@host/simple"}, certificates=bundle)) as options:
        path = Path(options[1].partition("src=")[2])
        assert "hunter2" in path.read_text()
        assert f"cert = {images.CERTIFICATES_IN_BUILD}" in path.read_text()
        assert path.parent.stat().st_mode & 0o077 == 0
        assert options[3] == f"id=ca.pem,src={bundle}"
        assert "hunter2" not in " ".join(options)
    assert not path.exists()


def test_no_builder_is_an_error_with_advice() -> None:
    spec = load(ROOT / "matrix.yaml").spec
    blind = engine(builder=None, builder_problem="/usr/bin/docker: the buildx component is missing")
    with pytest.raises(ImageBuildError, match="buildx component is missing") as caught:
        images.build_images(project_root=ROOT, spec=spec, targets=["cpu"], engine=blind, on_line=pytest.fail, base=BASE)
    assert "buildx plug-in" in caught.value.advice


class Builds:
    """Builds of a machine without npm, and their arguments."""

    context = ROOT / "images"

    def __init__(self, printed: str) -> None:
        self.printed = printed
        self.arguments: list[dict[str, str]] = []
        self.lines: list[str] = []
        self.on_line = self.lines.append

    def image(self, *, name: str, arguments: dict[str, str], **_: Any) -> str:
        self.arguments.append(arguments)
        if "WITHOUT" in arguments:
            return name
        raise ImageBuildError("building failed", command=("docker", "build"), code=1, output=self.printed)


def built(builds: Builds, target: str) -> str:
    spec = load(ROOT / "matrix.yaml").spec
    stages = {"python": images.BuiltImage(target="base", tag="base:1", content_tag="base:1-0", digest="0", seconds=0.0, rebuilt=False)}
    return str(images._target(builds, spec, stages, target, commit="", labels={}))  # type: ignore[arg-type]


def test_without_npm_webnn_s_image_is_built_with_the_reason_instead_of_the_browser() -> None:
    reason = "npm could not fetch @sparticuz/chromium@147.0.0 when the image was built (ENOTFOUND)"
    builds = Builds(f"#9 3.1 npm error code ENOTFOUND\n#9 3.2 hwmatrix: not fetched: {reason}\n#9 ERROR: exit code: 1\n")
    assert built(builds, "webnn") == "webnn"
    assert [arguments.get("WITHOUT") for arguments in builds.arguments] == [None, reason]
    assert builds.lines == [f"[webnn] built without its browser: {reason}"]


@pytest.mark.parametrize(
    ("target", "printed"),
    [
        ("webnn", "#9 3.2 @sparticuz/chromium@147.0.0 has the integrity sha512-x, but /build/chromium.txt has sha512-y\n"),
        ("webgpu", "#9 3.2 hwmatrix: not fetched: npm could not fetch onnxruntime-web@1.30.0 when the image was built (ENOTFOUND)\n"),
    ],
)
def test_other_failures_end_the_build(target: str, printed: str) -> None:
    builds = Builds(printed)
    with pytest.raises(ImageBuildError):
        built(builds, target)
    assert len(builds.arguments) == 1
