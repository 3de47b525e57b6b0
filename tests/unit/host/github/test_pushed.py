"""Images of a release: which are pushed, and their jobs' records; invalid ones are left out and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from factory_rows import example

from hwmatrix.app.publishing import publish
from hwmatrix.cli import main
from hwmatrix.errors import EngineError
from hwmatrix.host import publishing
from hwmatrix.host.github.pushed import gather, pushable
from hwmatrix.matrix.load import load

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[4]
ID, OTHER = "sha256:" + "ab" * 32, "sha256:" + "ef" * 32
DIGEST = "sha256:" + "cd" * 32


def test_the_images_that_a_release_pushes() -> None:
    loaded = load(ROOT / "matrix.yaml")
    assert pushable(loaded, loaded.spec.targets) == [
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


def artifact_of(arrived: Path, target: str = "cpu", /, **changes: Any) -> Path:
    """The artifact of an image's job, with ``changes`` to the image's record."""
    place = arrived / f"image-{target}-run"
    place.mkdir(parents=True)
    image = publishing.Described(
        target=target,
        tag=f"hwmatrix/{target}:0.1.0",
        image_id=ID,
        size=1,
        packages=2,
        sbom=f"sbom-{target}.cdx.json",
        pushed=f"registry.example/team/{target}:0.1.0",
        digest=DIGEST,
    )
    publishing.record(place, [image], ["qnn"])
    told = json.loads((place / "images.json").read_text(encoding="utf-8"))
    told["images"][0] |= changes
    (place / "images.json").write_text(json.dumps(told), encoding="utf-8")
    sbom = {"bomFormat": "CycloneDX", "metadata": {"component": {"bom-ref": ID}}}
    (place / f"sbom-{target}.cdx.json").write_text(json.dumps(sbom), encoding="utf-8")
    return place


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A run whose cpu shards are from the image ID, and whose openvino shards are from another one."""
    path = example(tmp_path / "matrix.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE shards SET image = target, image_digest = CASE target WHEN 'cpu' THEN ? ELSE ? END", [ID, OTHER])
    return path


def test_records_of_several_jobs_are_combined(tmp_path: Path, database: Path) -> None:
    with duckdb.connect(str(database), read_only=True) as connection:
        targets = {target for (target,) in connection.execute("SELECT target FROM shards").fetchall()}
    other = next(iter(targets - {"cpu"}))
    for target in ("cpu", other, "unheard"):
        artifact_of(tmp_path / "arrived", target)
    found = gather(tmp_path / "arrived", database, tmp_path / "assets")
    assert found.refused == ()
    assert set(found.names) == {"images.json", "sbom-cpu.cdx.json", f"sbom-{other}.cdx.json", "sbom-unheard.cdx.json"}
    told = json.loads((tmp_path / "assets" / "images.json").read_text(encoding="utf-8"))
    assert (told["schema"], told["never_pushed"]) == (publishing.RECORD_SCHEMA, ["qnn"])
    assert {image["target"]: image["measured"] for image in told["images"]} == {"cpu": True, other: False, "unheard": None}
    assert {image["digest"] for image in told["images"]} == {DIGEST}


def test_a_single_record_has_no_folder_of_its_own(tmp_path: Path, database: Path) -> None:
    """actions/download-artifact stores it this way, also with a pattern."""
    found = gather(artifact_of(tmp_path / "arrived"), database, tmp_path / "assets")
    assert set(found.names) == {"images.json", "sbom-cpu.cdx.json"}


def test_without_records(tmp_path: Path, database: Path) -> None:
    assert gather(tmp_path / "nowhere", database, tmp_path / "assets").names == ()
    assert not (tmp_path / "assets").exists()


def _text(name: str, text: str) -> Callable[[Path], None]:
    return lambda place: (place / name).write_text(text, encoding="utf-8") and None


def _linked(place: Path) -> None:
    (place / "sbom-cpu.cdx.json").unlink()
    (place / "sbom-cpu.cdx.json").symlink_to("/etc/passwd")


def _large(place: Path) -> None:
    with (place / "sbom-cpu.cdx.json").open("r+b") as file:
        file.truncate(17 * 2**20)


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (_text("images.json", "[]"), "images.json is not a mapping"),
        (_text("images.json", "{"), "images.json cannot be read"),
        (_text("images.json", "[" * 100_000), "images.json cannot be read"),
        (_text("images.json", '{"schema": "hwmatrix/images/2", "images": []}'), "does not describe one image"),
        (_text("sbom-cpu.cdx.json", "{}"), "is not the SBOM of sha256:abab"),
        (_text("sbom-cpu.cdx.json", '{"bomFormat": "CycloneDX", "metadata": []}'), "is not the SBOM of"),
        (_text("evil.sh", "id"), "it also contains 'evil.sh'"),
        (_linked, "it has no sbom-cpu.cdx.json"),
        (_large, "sbom-cpu.cdx.json is too large"),
    ],
)
def test_invalid_artifacts_are_named_and_the_rest_is_used(tmp_path: Path, database: Path, harm: Callable[[Path], None], told: str) -> None:
    harm(artifact_of(tmp_path / "arrived"))
    artifact_of(tmp_path / "arrived", "onnxruntime")
    found = gather(tmp_path / "arrived", database, tmp_path / "assets")
    (reason,) = found.refused
    assert reason.startswith("'image-cpu-run': ")
    assert told in reason
    assert set(found.names) == {"images.json", "sbom-onnxruntime.cdx.json"}


@pytest.mark.parametrize(
    "changes", [{"target": "../x"}, {"target": None}, {"sbom": "../../evil"}, {"pushed": None}, {"digest": None}, {"image_id": OTHER}]
)
def test_invalid_records_are_refused(tmp_path: Path, database: Path, changes: dict[str, Any]) -> None:
    artifact_of(tmp_path / "arrived", **changes)
    found = gather(tmp_path / "arrived", database, tmp_path / "assets")
    assert len(found.refused) == 1
    assert found.names == ()


@pytest.mark.usefixtures("database")
def test_release_files_include_the_records_with_checksums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", "--output-dir", str(tmp_path)]) == 0
    artifact_of(tmp_path / "arrived")
    (tmp_path / "arrived" / "::add-mask::x").mkdir()
    capsys.readouterr()
    assert main.main(["assets", str(tmp_path), str(tmp_path / "assets"), "--images", str(tmp_path / "arrived")]) == 0
    printed = capsys.readouterr().out
    sums = (tmp_path / "assets" / "SHA256SUMS").read_text(encoding="utf-8")
    assert "  images.json\n" in sums
    assert "  sbom-cpu.cdx.json\n" in sums
    assert [line for line in printed.splitlines() if line.startswith("::")] == [
        "::error title=images::'::add-mask::x': it has no images.json"
    ]


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the engine by one whose pushes succeed."""

    def described(_engine: object, built: tuple[str, str, str], _folder: Path) -> publishing.Described:
        return publishing.Described(target=built[0], tag=built[1], image_id=built[2], size=1, packages=2, sbom=f"sbom-{built[0]}.cdx.json")

    def push(_engine: object, image: publishing.Described, prefix: str, *_: object) -> publishing.Described:
        return publishing.dataclasses.replace(image, pushed=f"{prefix}/{image.target}:1", digest=DIGEST)  # type: ignore[attr-defined]

    monkeypatch.setattr("hwmatrix.app.publishing.connect", lambda *_, **__: object())
    monkeypatch.setattr(publishing, "inspect", lambda *_: {"Config": {"Labels": {}}})
    monkeypatch.setattr(publishing, "describe", described)
    monkeypatch.setattr(publishing, "push", push)


class View:
    def say(self, _text: str) -> None: ...

    detail = say


@pytest.mark.usefixtures("pushed")
def test_the_attestation_step_gets_its_inputs(tmp_path: Path) -> None:
    view: Any = View()
    built = [("cpu", "hwmatrix/cpu:1", ID)]
    environment = {"GITHUB_OUTPUT": str(tmp_path / "output")}
    publish(built, named=["cpu"], prefix="r.example:5000/team", folder=tmp_path, environment=environment, view=view)
    assert (tmp_path / "output").read_text(encoding="utf-8") == f"name=r.example:5000/team/cpu\ndigest={DIGEST}\nsbom=sbom-cpu.cdx.json\n"
    publish(built, named=["cpu"], prefix=None, folder=tmp_path, environment=environment, view=view)
    assert (tmp_path / "output").read_text(encoding="utf-8").count("digest=") == 1


@pytest.mark.parametrize("digest", ["sha256:1", f"{DIGEST}\nname=evil", "latest"])
def test_a_registry_s_digest_must_be_valid(digest: str) -> None:
    with pytest.raises(EngineError, match="is not a digest"):
        publishing._pushed([{"aux": {"Digest": digest}}], "x:1", lambda _line: None)
