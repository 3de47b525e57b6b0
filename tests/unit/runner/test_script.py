"""A generated test at run time: unavailable hardware, a model given by name, requested devices and batches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import ConfigError, UnavailableError
from hwmatrix.generate import test_plan
from hwmatrix.knowledge.requirements import RequirementsError
from hwmatrix.records import Backend, Dtype
from hwmatrix.runner import script
from hwmatrix.runner.place import Place
from hwmatrix.runner.script import Asked, batch_size, described, main, places

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a matrix.yaml, where models' requirements are unknown."""

    def unknown(*_: Any, **__: Any) -> None:
        raise RequirementsError("nothing is known", advice="measure it")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HWMATRIX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(test_plan, "requirements_for", unknown)
    return tmp_path


@pytest.fixture
def ask() -> Iterator[Any]:
    """Set the command-line options until the end of the test."""
    before = script._ASKED.get()
    yield lambda **asked: script._ASKED.set(Asked(**asked))
    script._ASKED.set(before)


@pytest.mark.parametrize(
    ("device", "module", "image"),
    [
        ("webgpu", "websocket", "webgpu"),
        ("webnn", "websocket", "webnn"),
        ("openvino", "openvino", "openvino"),
        ("qnn", "onnxruntime_qnn", "qnn"),
        ("onnxruntime", "onnxscript", "onnxruntime"),
    ],
)
def test_a_runtime_that_is_not_installed_is_unavailable_with_its_name(
    monkeypatch: pytest.MonkeyPatch, device: str, module: str, image: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("hwmatrix.targets.")]:
        monkeypatch.delitem(sys.modules, name)  # as in a process that has not imported it
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnavailableError, match=rf"not installed in .*: .*{module}.*images/{image}/requirements.txt") as told:
        Place(device=device).check()
    assert told.value.error_type == "missing_package"


def test_a_name_means_the_model_of_matrix_yaml_on_the_hardware_and_on_the_cpu() -> None:
    """Without a matrix.yaml, the packaged one is used."""
    plan, found = described("bert-base-uncased", "qnn")
    assert (plan.name, plan.model_class) == ("bert", "BertForMaskedLM")
    assert [(place.device, place.dtype) for place in found] == [("qnn", Dtype.FLOAT16), ("cpu", Dtype.FLOAT32)]
    assert found[0].options == {"soc_model": 57}
    for hardware in (None, "cpu"):
        assert [place.device for place in described("bert", hardware)[1]] == ["cpu"]


def test_unknown_names_and_hardware_are_refused() -> None:
    with pytest.raises(ConfigError, match="is only a name"):
        described("nobody/nothing")
    with pytest.raises(ConfigError, match="'gpu' is not a hardware name"):
        described("bert", "gpu")


def test_the_matrix_yaml_of_the_folder_comes_first(project: Path) -> None:
    text = (ROOT / "matrix.yaml").read_text(encoding="utf-8")
    assert "google-bert/bert-base-uncased" in text
    (project / "matrix.yaml").write_text(text.replace("google-bert/bert-base-uncased", "mine/bert-of-mine"), encoding="utf-8")
    assert described("bert")[0].hub_id == "mine/bert-of-mine"


def test_without_options_the_test_s_own_list_is_used() -> None:
    listed = [Place(device="cuda"), Place(device="cpu")]
    assert places(described("bert")[0], listed) == listed
    assert batch_size(4) == 4


def test_the_command_line_chooses_devices_and_batch(ask: Any) -> None:
    plan, listed = described("bert")[0], [Place(device="cuda", tolerance=0.5), Place(device="cpu")]
    ask(device=Backend.CUDA, batch=7)
    assert places(plan, listed) == [listed[0]]
    assert batch_size(4) == 7
    ask(device=Backend.OPENVINO)  # not listed in the test
    assert [(place.device, place.options) for place in places(plan, listed)] == [("openvino", {"device": "CPU"})]
    ask(all_hardware=True)
    every = places(plan, listed)
    assert {place.backend for place in every} == set(Backend)
    assert listed[0] in every


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "gpu"], "'gpu' is not a hardware name"),
        (["--batch-size", "0"], "a batch has at least one sample, not 0"),
        (["--device", "cpu", "--all-hardware"], "not allowed with"),
    ],
)
def test_a_wrong_command_line_ends_before_any_test(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main("test_hf_bert.py", words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
