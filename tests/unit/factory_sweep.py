"""Rows of a sweep over very many architectures for tests of reports. IT IS NO MEASUREMENT: every fact in it is made up, by a rule.

Nothing of it is timed, as with a suite that says ``timing: false``. Models are called ``arch-000`` and so on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from factory_rows import RUN, Database, unmeasured

if TYPE_CHECKING:
    from pathlib import Path

TARGETS: Final = ("cpu", "openvino", "onnxruntime")
FAMILIES: Final = ("text_generation", "vision", "embedding", "multimodal", "audio", "other", "video")
_INPUTS: Final = {
    "text_generation": ["text"],
    "embedding": ["text"],
    "vision": ["image"],
    "video": ["image"],
    "multimodal": ["image", "text"],
    "audio": ["audio"],
    "other": None,
}
_APART: Final = 101
"""How many different numbers of parameters there are."""
TRACEBACK: Final = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/hwmatrix/targets/openvino/target.py", line 131, in prepare
    exported = torch.export.export(self.model, (), inputs)
  File "/opt/venv/lib/python3.11/site-packages/torch/export/_trace.py", line 2262, in _export
    ep = fn(*args, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/transformers/utils/generic.py", line 1002, in wrapper
    return func(self, *args, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/transformers/models/{kind}/modeling_{kind}.py", line {line}, in get_rope_index
    for step in range(int(image_grid_thw.max())):
  File "/opt/venv/lib/python3.11/site-packages/torch/fx/experimental/symbolic_shapes.py", line 8132, in _log
    raise error
torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u{line}, 1)
"""


def sweep(path: Path, *, models: int = 130, targets: tuple[str, ...] = TARGETS) -> Path:
    """Write the database and give its path. The model types' names and the failures repeat every few models."""
    with Database(path) as database:
        listed = [{"name": f"arch-{n:03}", "size": "tiny", "weights": "factory", "role": "model"} for n in range(models)]
        database.run(command="hwmatrix matrix --suite all", plan=json.dumps({"models": listed}))
        for target in targets:
            database.shard(f"s-{target}", target)
            database.detection(f"s-{target}")
        for number in range(models):
            for target in targets:
                _cell(database, number, target)
    return path


def _cell(database: Database, number: int, target: str) -> None:
    model, family = f"arch-{number:03}", FAMILIES[number % len(FAMILIES)]
    planned = database.plan(model, target, family=family, architecture=model.replace("-", "_"), run_id=RUN)
    text_path = None if family == "other" else family == "multimodal" and number % 4 == 1
    changes = {"inputs": ["text"] if text_path else _INPUTS[family], "text_path": text_path, "stage": "compare", "first_ms": None}
    changes["method"] = "eager" if target == "cpu" else f"traced, because export {number} failed"
    database.cell(planned, f"s-{target}", **changes | {"parameters": 20_000 + 997 * (number * 7 % _APART)} | _end(number, target))


def _end(number: int, target: str) -> dict[str, Any]:
    """What became of a cell: of models that are alike modulo a number, the same."""
    if number % 13 == 12:
        return unmeasured("factory_error") | {
            "message": f"Arch{number}Model cannot be built: KeyError: 'rope_theta'",
            "error_type": "build_failed",
            "inputs": None,
            "text_path": None,
        }
    if target == "cpu":
        return unmeasured("crash") if number % 97 == 3 else {}
    if number % 11 == 4:
        text = TRACEBACK.format(kind=f"arch_{number:03}", line=100 + number)
        told = {"message": f"Could not guard on data-dependent expression Eq(u{number}, 1)", "error_type": "data_dependent_export"}
        return unmeasured("error") | told | {"stage": "prepare", "severity": "error", "traceback": text}
    if number % 9 == 2:
        need = ["aten::_fft_r2c"] if number % 2 else ["aten::unique_dim", "aten::_fft_r2c"]
        return unmeasured("unsupported") | {"needs": need, "message": f"no conversion for {need[0]}"}
    if number % 17 == 5:
        return unmeasured("mismatch") | {"message": f"relative L2 error 0.{number} of logits_{number} exceeds 0.001"}
    return unmeasured("timeout") if number % 53 == 6 else {}
