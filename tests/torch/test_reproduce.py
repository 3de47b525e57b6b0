"""Scripts that reproduce a cell, run: the same weights, inputs and outputs as the bundle's, and the failure that was measured."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from factory_plans import cell_plan, target_plan
from fake_target import outcome_of
from script_runs import ran, ran_warm
from type_parts import requested_part

from hwmatrix.cli.main import main
from hwmatrix.errors import ConfigError, NothingSelectedError
from hwmatrix.generate.model_code import model_code
from hwmatrix.generate.reproduction import reproduce
from hwmatrix.matrix.load import load
from hwmatrix.matrix.plan import model_plan
from hwmatrix.models import onnx_export
from hwmatrix.models.bundle import find_or_build
from hwmatrix.models.inputs import make_inputs
from hwmatrix.records import Dtype, Family, Settings, Size, Status, Tolerance
from hwmatrix.runner import cell
from hwmatrix.runner.job import CellJob
from hwmatrix.store.latest import merge_latest

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "tests" / "recorded" / "default.duckdb"
ARCHITECTURES = ROOT / "reports" / "published" / "matrix.duckdb"
SPEC = load(ROOT / "matrix.yaml").spec
MODELS = {name: model for name, model in SPEC.models.items() if model.family is not Family.DIFFUSION}
TINY = sorted(name for name, model in MODELS.items() if model.tiny.unbuildable is None)
FULL = sorted(name for name, model in MODELS.items() if model.full.unbuildable is None)


@pytest.fixture(scope="module")
def cache(shared_cache: Path) -> Path:
    return shared_cache / "bundles"


def imported(script: str, path: Path) -> ModuleType:
    """A script as a module: its functions, without running it."""
    path.write_text(script, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("reproduction", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def differing(
    script: ModuleType, own: Path, model_dir: Path, inputs: dict[str, Any], expected: dict[str, Any], *, rtol: float = 1e-5
) -> list[str]:
    """What a script makes otherwise than the bundle has it: its weights, its inputs, or its outputs. ``own`` is a folder for its model."""
    import torch
    from safetensors.torch import load_file

    def exactly(one: torch.Tensor, other: torch.Tensor) -> bool:
        return one.dtype == other.dtype and torch.equal(one, other)

    def closely(one: torch.Tensor, other: torch.Tensor) -> bool:
        """By the relative L2 error, as targets are compared: single values near zero differ by more where threads sum in another order."""
        if one.shape != other.shape or not other.dtype.is_floating_point:
            return torch.equal(one, other)
        difference = torch.where(one == other, 0, one - other)  # infinite values are equal too
        return bool(difference.norm() <= rtol * other[other.isfinite()].norm())

    def weights(folder: Path) -> dict[str, torch.Tensor]:
        (file,) = [*folder.glob("*.safetensors"), *folder.glob("*.pt")]
        return load_file(file) if file.suffix == ".safetensors" else torch.load(file, weights_only=True)  # type: ignore[no-any-return]

    own.mkdir(exist_ok=True)
    script.save_model(own)
    given = script.make_inputs()
    compared = {
        "weights": (weights(own), weights(model_dir), exactly),
        "inputs": (given, inputs, exactly),
        "outputs": (script.forward(script.load_model(own), given), expected, closely),
    }
    return [
        what
        for what, (made, wanted, same) in compared.items()
        if made.keys() != wanted.keys() or not all(same(made[key], wanted[key]) for key in wanted)
    ]


@pytest.mark.parametrize("name", TINY)
def test_weights_inputs_and_outputs_are_those_of_the_bundle(tmp_path: Path, cache: Path, name: str) -> None:

    bundle = find_or_build(dataclasses.replace(model_plan(name, SPEC, Size.TINY), trained=False), cache)  # as recorded
    script = imported(reproduce(name, "cpu", database=RECORDED, force=True).script, tmp_path / "script.py")
    assert SPEC.models[name].tiny.config == script.CONFIG
    assert differing(script, tmp_path / "own", bundle.model_dir, bundle.load_inputs(), bundle.load_expected()) == []


@pytest.mark.parametrize("name", FULL)
def test_inputs_of_full_models_are_drawn_as_those_of_bundles(tmp_path: Path, name: str) -> None:
    import torch
    import transformers

    from hwmatrix.models.build import recipe_config

    plan = model_plan(name, SPEC, Size.FULL)
    with torch.device("meta"):
        model = getattr(transformers, plan.model_class)(recipe_config(plan))
    wanted = make_inputs(model, plan)
    generator = torch.Generator().manual_seed(plan.seed)
    names: dict[str, Any] = {"torch": torch, "generator": generator}
    made = {}
    for each in model_code(plan, tmp_path).inputs:
        for draw in each.draws:
            eval(draw, names)  # noqa: S307 - what the script would do
        made[each.name] = torch.tensor(each.ids) if each.ids is not None else eval(each.code, names)  # noqa: S307 - the same
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[key], wanted[key]) for key in wanted)


TYPES = [
    "deimv2",  # a configuration of many fields
    "encodec",  # codebooks before their training, a gain
    "mllama",  # an image beside the text, gates
    "qwen2_vl",  # tokens and places worked out from grids
    "sew-d",  # one second of sound
    "timesformer",  # a film
    "bark",  # built from a part of its configuration
]


@pytest.mark.parametrize("name", TYPES)
def test_a_model_of_a_type_is_that_of_its_bundle(tmp_path: Path, cache: Path, name: str) -> None:

    with duckdb.connect(str(ARCHITECTURES), read_only=True) as connection:
        found = connection.execute("SELECT model FROM cells WHERE architecture = ? AND target = 'cpu'", [name]).fetchone()
    assert found is not None
    made = reproduce(found[0], "cpu", database=ARCHITECTURES, force=True)
    bundle = find_or_build(made.cell.model, cache)
    script = imported(made.script, tmp_path / "script.py")
    assert differing(script, tmp_path / "own", bundle.model_dir, bundle.load_inputs(), bundle.load_expected(), rtol=1e-4) == []
    assert max(map(len, made.script.splitlines())) <= 140


DIFFUSERS = [
    "stable-diffusion-unet",  # of matrix.yaml
    "flux",  # of its class alone
    "ltx_video",  # takes plain numbers
    "sd3",  # saved buffers
    "unet_spatio_temporal",  # scalar parameters
]


@pytest.mark.parametrize("name", DIFFUSERS)
def test_a_model_of_diffusers_is_that_of_its_bundle(tmp_path: Path, cache: Path, name: str) -> None:
    pytest.importorskip("diffusers")
    made = reproduce(name, "cpu", database=ARCHITECTURES, size=Size.TINY, force=True)
    bundle = find_or_build(made.cell.model, cache)
    script = imported(made.script, tmp_path / "script.py")
    assert differing(script, tmp_path / "own", bundle.model_dir, bundle.load_inputs(), bundle.load_expected()) == []
    assert re.search(r"Requirements: pip install torch==.*\bdiffusers==", made.script, re.DOTALL)


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ("onnxruntime", Dtype.FLOAT32),
        pytest.param("openvino", Dtype.INT8, marks=pytest.mark.long),
        pytest.param("executorch", Dtype.FLOAT32, marks=pytest.mark.long),
    ],
)
def test_a_script_runs_a_denoiser_whose_input_and_output_have_one_name(tmp_path: Path, target: str, dtype: Dtype) -> None:
    for package in ("diffusers", target, *(["nncf"] if dtype is Dtype.INT8 else [])):
        pytest.importorskip(package)
    path = tmp_path / "script.py"
    made = reproduce("stable-diffusion-unet", target, database=ARCHITECTURES, size=Size.TINY, dtype=dtype, force=True)
    path.write_text(made.script, encoding="utf-8")
    told = ran_warm(path)
    assert told.returncode == 0, told.stderr[-2000:]
    assert "sample here: " in told.stdout
    assert told.stdout.rstrip().endswith("NOT REPRODUCED: it runs, and the numbers agree")


def test_a_pipeline_has_no_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--reproduce", "stable-diffusion", "qnn", "--dtype", "float16", "--database", str(ARCHITECTURES)]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "stable-diffusion is a pipeline" in told
    assert "write scripts of its parts" in told


@pytest.mark.long
@pytest.mark.filterwarnings("default")  # as an error, a warning of a model makes the factory try other dimensions
def test_a_part_of_all_types_can_be_written_as_scripts(tmp_path: Path) -> None:
    """Another twentieth of them every day, as in test_factory_pins: weights, inputs and outputs of the script are those of the factory."""
    from hwmatrix.models.reference import from_factory

    part, parts = requested_part(os.environ, "HWMATRIX_PINS_PART", day=dt.datetime.now(dt.UTC).date().toordinal())
    with duckdb.connect(str(ARCHITECTURES), read_only=True) as connection:
        passed = connection.execute(
            "SELECT DISTINCT model FROM cells WHERE target = 'cpu' AND size = 'tiny' AND status = 'pass' AND model = architecture"
            " AND family <> 'diffusion' ORDER BY model"
        ).fetchall()
    types = [name for (name,) in passed if name not in SPEC.models][part % parts :: parts]
    assert len(types) > 400 / parts
    wrong = []
    for name in types:
        made = reproduce(name, "cpu", database=ARCHITECTURES, size=Size.TINY, force=True)
        folder = tmp_path / name
        folder.mkdir()
        script = imported(made.script, folder / "script.py")
        _, inputs, expected, _ = from_factory(made.cell.model, folder / "theirs")
        wrong += [f"{name}: {what}" for what in differing(script, folder / "own", folder / "theirs", inputs, expected, rtol=1e-4)]
        shutil.rmtree(folder)
    assert wrong == [], f"HWMATRIX_PINS_PART={part}/{parts}"


def test_what_a_type_lacks_on_openvino_is_lacking_again(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path = tmp_path / "script.py"
    path.write_text(reproduce("mimi_encoder", "openvino", database=ARCHITECTURES).script, encoding="utf-8")
    told = ran_warm(path)
    assert told.returncode == 1
    assert "No conversion rule found for operations: aten::diff" in told.stderr


@pytest.mark.parametrize(
    ("name", "target"), [("cosmos3_edge", "onnxruntime"), pytest.param("hyperclovax_vision_v2", "openvino", marks=pytest.mark.long)]
)
def test_a_graph_that_holds_extents_is_exported_by_its_script(tmp_path: Path, name: str, target: str) -> None:
    """Both slice by their grids: the first export fails, the one with the grids held fixed runs."""
    pytest.importorskip(target)
    path = tmp_path / "script.py"
    path.write_text(reproduce(name, target, database=ARCHITECTURES, force=True).script, encoding="utf-8")
    told = ran_warm(path)
    assert told.returncode == 0, told.stderr[-2000:]
    assert told.stdout.rstrip().endswith("NOT REPRODUCED: it runs, and the numbers agree")


def test_a_type_that_cannot_be_made_here_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from hwmatrix.errors import FactoryError
    from hwmatrix.generate import type_code

    def refused(*_: object) -> None:
        raise FactoryError("transformers 9.0 has no architecture 'sew-d'", error_type="unknown_architecture")

    monkeypatch.setattr(type_code, "from_factory", refused)
    assert main(["generate", "--reproduce", "sew-d", "cpu", "--force", "--database", str(ARCHITECTURES)]) == 2
    told = capsys.readouterr().err
    assert "the model cannot be built here, and so its inputs cannot either: transformers 9.0 has no architecture 'sew-d'" in told
    assert "use the versions that it was measured with" in told


def test_a_configuration_that_its_values_do_not_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from hwmatrix.generate import type_code

    monkeypatch.setattr(type_code, "_same_weights", lambda *_: False)
    with pytest.raises(ConfigError, match="its configuration cannot be recreated from its values"):
        reproduce("sew-d", "cpu", database=ARCHITECTURES, force=True)


def test_inputs_are_drawn_again_in_step_or_written_out() -> None:
    import torch

    from hwmatrix.generate.model_code import drawn_inputs
    from hwmatrix.generate.type_code import Draw

    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn((2, 3), generator=generator), torch.rand((4,), generator=generator)
    draws = [Draw(code="torch.randn((2, 3), generator=generator)", tensor=first), Draw(code="torch.rand((4,), ...)", tensor=second)]
    inputs = {"b": second, "a": first, "mask": torch.ones(2, dtype=torch.bool), "none": torch.zeros(1), "ids": torch.tensor([[3, 4]])}
    made = {each.name: each for each in drawn_inputs(inputs, draws)}
    assert (made["b"].code, made["b"].draws) == ("torch.rand((4,), ...)", ("torch.randn((2, 3), generator=generator)",))
    assert made["a"].ids == first.tolist(), "what was drawn before something else cannot be drawn after it"
    assert made["mask"].code == "torch.ones((2,), dtype=torch.bool)"
    assert made["none"].code == "torch.zeros((1,), dtype=torch.float32)"
    assert made["ids"].ids == [[3, 4]]


def test_what_was_wrong_on_qnn_is_wrong_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mixtral's experts on the HTP (docs/targets/qnn.md), through the command."""
    from hwmatrix.errors import UnavailableError
    from hwmatrix.hardware import qnn

    try:
        qnn.detect()
    except UnavailableError as missing:
        pytest.skip(str(missing))
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "--reproduce", "mixtral", "qnn", "--dtype", "a8w8", "--database", str(RECORDED)]) == 0
    path = tmp_path / "reproduce_mixtral_qnn.py"
    told = ran_warm(path)
    assert told.returncode == 1, told.stderr[-2000:]
    assert re.search(r"nodes by execution provider: \{'QNNExecutionProvider': \d+\}", told.stdout), "no node is left to the CPU"
    error, measured = map(float, re.findall(r"relative L2 error ([\d.]+), allowed 0\.2, as measured ([\d.]+)", told.stdout)[0])
    assert measured == 0.657
    assert error > 0.2, "the recorded graph had its RMS norms fused, and the script's has not: the error is another one"
    assert told.stdout.rstrip().endswith("REPRODUCED: the numbers are wrong")
    style = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "140", "--extend-select", "E501", str(path)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert style.returncode == 0, style.stdout


def database_of_trained(tmp_path: Path, *, target: str = "cpu", **values: Any) -> Path:
    """The recorded database as if its vit had been trained, with other values of its cells on a target."""
    database = tmp_path / "m.duckdb"
    merge_latest([RECORDED], database)  # in the current version
    with duckdb.connect(str(database)) as connection:
        row = connection.execute("SELECT run_id, plan FROM runs").fetchone()
        assert row is not None
        plan = json.loads(row[1])
        (model,) = (model for model in plan["models"] if model["name"] == "vit")
        model["trained"] = True
        plan["tolerances"]["float32"] |= {"excess": 16.0, "bound": 128.0}
        connection.execute("UPDATE runs SET plan = ?", [json.dumps(plan)])
        for name, value in values.items():
            connection.execute(f"UPDATE cells SET {name} = ? WHERE model = 'vit' AND target = ?", [value, target])  # noqa: S608 - our names
    return database


def test_a_trained_model_comes_from_files_beside_its_script(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = find_or_build(dataclasses.replace(model_plan("vit", SPEC, Size.TINY), trained=True), cache)
    database = database_of_trained(tmp_path, bundle=bundle.digest)
    monkeypatch.setenv("HWMATRIX_CACHE", str(cache.parent))
    path = tmp_path / "scripts" / "vit.py"
    path.parent.mkdir()
    command = ["generate", "--reproduce", "vit", "cpu", "--force", "--database", str(database)]
    assert main([*command, "--output", str(path)]) == 0
    assert f"wrote {path.with_suffix('')}: the trained model and its inputs" in capsys.readouterr().out
    script = imported(path.read_text(encoding="utf-8"), path)
    assert "its weights are those of the run" in " ".join(path.read_text(encoding="utf-8").replace("#", "").split())
    given, expected = script.make_inputs(), bundle.load_expected()
    assert {name: tensor.tolist() for name, tensor in given.items()} == {name: t.tolist() for name, t in bundle.load_inputs().items()}
    made = script.forward(script.load_model(None), given)
    assert (made["logits"] - expected["logits"]).abs().max() < 1e-5
    told = ran_warm(path)
    assert told.returncode == 0, told.stderr[-2000:]
    assert told.stdout.rstrip().endswith("NOT REPRODUCED: it runs, and the numbers agree")
    assert main([*command, "--output", "-"]) == 2
    assert "the script reads a folder beside it (name a file)" in capsys.readouterr().err


def test_a_cell_that_the_noise_floor_judged_allows_a_multiple_of_it(tmp_path: Path, cache: Path) -> None:
    """An error of 3e-5 that is 30 times the floor: 16 times would have been allowed."""
    judged = {"status": "mismatch", "error_type": "mismatch", "relative_error": 3e-5, "excess": 30.0, "allowed_error": 1.6e-5}
    database = database_of_trained(tmp_path, **judged)
    made = reproduce("vit", "cpu", database=database, cache=cache)
    allowed = imported(made.script, tmp_path / "script.py").TOLERANCE
    assert allowed == pytest.approx(1.6e-5)


def test_a_precision_that_costs_too_much_is_no_error_to_report(tmp_path: Path, cache: Path) -> None:
    database = database_of_trained(tmp_path, status="mismatch", error_type="precision_loss", message="accuracy is 0.5")
    with pytest.raises(NothingSelectedError, match=r"is no error of the target: accuracy is 0\.5"):
        reproduce("vit", "cpu", database=database, cache=cache)
    assert reproduce("vit", "cpu", database=database, cache=cache, force=True).cell.error_type == "precision_loss"


def test_quantization_uses_the_samples_of_the_run(tmp_path: Path, cache: Path) -> None:
    """The script's graph of a trained model quantizes as the cell's did: its error is the cell's."""
    from hwmatrix.errors import UnavailableError
    from hwmatrix.hardware import qnn

    try:
        qnn.detect()
    except UnavailableError as missing:
        pytest.skip(str(missing))
    plan = dataclasses.replace(model_plan("vit", SPEC, Size.TINY), trained=True)
    bundle = find_or_build(plan, cache)
    for exporter in onnx_export.EXPORTERS:
        onnx_export.export_one(bundle, cache, exporter)
    told: list[dict[str, Any]] = []
    target = dataclasses.replace(target_plan(), name="qnn", backend="qnn", options={"soc_model": 57})
    settings = Settings(dtype=Dtype.A8W8, batch=1, sequence_length=16, threads=1)
    job = CellJob(
        cell=dataclasses.replace(cell_plan("vit", "qnn"), settings=settings),
        model=plan,
        target=target,
        bundle=bundle.path,
        rule=None,
        tolerances={Dtype.A8W8: Tolerance(relative_error=1.0, reason="a test")},
    )
    cell.execute(job, told.append)
    facts = outcome_of(told)["facts"]
    measured = {name: facts[name] for name in ("method", "relative_error")}
    database = database_of_trained(tmp_path, target="qnn", status="mismatch", error_type="mismatch", **measured)
    made = reproduce("vit", "qnn", database=database, dtype=Dtype.A8W8, cache=cache)
    path = tmp_path / "script.py"
    path.write_text(made.script, encoding="utf-8")
    for name, source in made.data.items():
        (path.with_suffix("") / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path.with_suffix("") / name)
    printed = ran_warm(path).stdout
    (error,) = re.findall(r"relative L2 error ([\d.e-]+), allowed", printed)
    assert float(error) == pytest.approx(facts["relative_error"], rel=0.01)


REDUCED = {
    "cpu": ("int8_dynamic",),
    "openvino": ("a8w8",),
    "onnxruntime": ("a8w8",),
}
"""Precisions in which targets reduce a float32 model or graph themselves: the ones with most steps, since each script takes seconds."""


@pytest.fixture(scope="module")
def reduced(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a run of vit in these."""
    output = tmp_path_factory.mktemp("reduced")
    dtypes = sorted({dtype for given in REDUCED.values() for dtype in given})
    command = [sys.executable, "-m", "hwmatrix", "matrix", "--models", "vit", "--targets", *REDUCED, "--dtypes", *dtypes]
    done = subprocess.run(
        [*command, "--isolation", "none", "--no-timing", "--no-adapt", "--output-dir", str(output)],
        env=os.environ | {"HWMATRIX_CACHE": str(cache.parent)},
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return output / "matrix.duckdb"


@pytest.mark.long
@pytest.mark.parametrize(("target", "dtype"), [(target, dtype) for target, dtypes in REDUCED.items() for dtype in dtypes])
def test_a_script_reduces_precision_as_the_target_does(tmp_path: Path, cache: Path, reduced: Path, target: str, dtype: str) -> None:
    """The script rounds the same numbers, from the same samples: its error is the cell's."""
    made = reproduce("vit", target, database=reduced, dtype=Dtype(dtype), cache=cache, force=True)
    if made.cell.status is Status.UNAVAILABLE:
        pytest.skip(str(made.cell.message))
    path = tmp_path / "script.py"
    path.write_text(made.script, encoding="utf-8")
    for name, source in made.data.items():
        (path.with_suffix("") / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path.with_suffix("") / name)
    told = ran_warm(path)
    found = re.findall(r"relative L2 error ([\d.e-]+), allowed", told.stdout)
    assert found, told.stderr[-2000:]
    assert float(found[0]) == pytest.approx(made.cell.relative_error, rel=0.01)


@pytest.mark.parametrize("target", ["cpu", "openvino", "onnxruntime"])
def test_a_cell_that_passes_does_not_reproduce(tmp_path: Path, target: str) -> None:
    pytest.importorskip(target if target != "cpu" else "torch")
    path = tmp_path / "script.py"
    path.write_text(reproduce("bert", target, database=RECORDED, force=True).script, encoding="utf-8")
    told = ran(path)
    assert told.returncode == 0, told.stderr[-2000:]
    assert told.stdout.rstrip().endswith("NOT REPRODUCED: it runs, and the numbers agree")


def test_a_tolerance_that_the_cpu_does_not_meet_reproduces_on_the_cpu(tmp_path: Path) -> None:
    """The way of every mismatch, where no other runtime is installed."""
    database = tmp_path / "m.duckdb"
    database.write_bytes(RECORDED.read_bytes())
    with duckdb.connect(str(database)) as connection:
        connection.execute("""UPDATE runs SET plan = json_merge_patch(plan, '{"tolerances": {"float32": {"relative_error": 1e-12}}}')""")
    path = tmp_path / "script.py"
    path.write_text(reproduce("vit", "cpu", database=database, force=True).script, encoding="utf-8")
    told = ran_warm(path)
    assert told.returncode == 1, told.stderr[-2000:]
    assert "allowed 1e-12" in told.stdout
    assert told.stdout.rstrip().endswith("REPRODUCED: the numbers are wrong")


def test_a_model_that_raises_shows_its_traceback(tmp_path: Path) -> None:
    """An error needs no comparison: the script ends with it."""
    database = tmp_path / "m.duckdb"
    database.write_bytes(RECORDED.read_bytes())
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE cells SET status = 'error' WHERE model = 'vit' AND target = 'cpu'")
    script = reproduce("vit", "cpu", database=database).script
    (tmp_path / "script.py").write_text(script.replace("torch.randn((1, 3, 32, 32)", "torch.randn((1, 3, 30, 32)"), encoding="utf-8")
    told = ran(tmp_path / "script.py")
    assert told.returncode == 1
    assert "Traceback" in told.stderr
    assert "REPRODUCED" not in told.stdout


def test_a_hung_script_says_where_and_ends(tmp_path: Path) -> None:
    database = tmp_path / "m.duckdb"
    database.write_bytes(RECORDED.read_bytes())
    with duckdb.connect(str(database)) as connection:
        connection.execute("UPDATE cells SET status = 'timeout' WHERE model = 'bert' AND target = 'cpu'")
    script = reproduce("bert", "cpu", database=database).script
    assert "dump_traceback_later(120.0, exit=True)" in script
    slow = script.replace("later(120.0", "later(0.5").replace("    inputs = make_inputs()\n", "    __import__('time').sleep(60)\n")
    (tmp_path / "script.py").write_text(slow, encoding="utf-8")
    told = ran(tmp_path / "script.py")
    assert told.returncode == 1
    assert "Timeout (0:00:00.5" in told.stderr


def test_a_checkpoint_that_is_gone_is_told(tmp_path: Path) -> None:
    plan = model_plan("bert", SPEC, Size.TINY)
    with pytest.raises(ConfigError, match=r"is not a folder.*on the machine that has the checkpoint"):
        model_code(dataclasses.replace(plan, weights=str(tmp_path / "gone"), trained=False), tmp_path)


def test_without_torch_the_command_says_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name, *rest))
    with pytest.raises(ConfigError, match=r"(?s)torch must be installed to build bert.*pip install torch==\S+ transformers=="):
        reproduce("bert", "cpu", database=RECORDED, force=True)
