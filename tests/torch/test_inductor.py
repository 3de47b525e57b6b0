"""torch.compile for real: graphs, graph breaks with their places, recompilations, and the compiler's failures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hwmatrix.errors import CellFailure
from hwmatrix.targets.inductor.compiler import found

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(found() is None, reason="no C++ compiler is installed here"),
    pytest.mark.filterwarnings("default"),  # those of torch.compile itself
]


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], Any]], Any]:
    """Compile a function of a tensor ``x`` as a model, with an empty cache; call it once."""
    import torch

    from hwmatrix.targets.torch.compiling import Compiled

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    def compile_it(forward: Callable[[Any], Any]) -> Any:
        class Model(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return forward(x)  # type: ignore[no-any-return]

        made = Compiled(Model())
        made.compile(lambda: made(x=torch.ones(2, 3)))
        return made

    return compile_it


def test_a_plain_model_is_one_graph_and_its_cache_is_faster(compiled: Callable[..., Any]) -> None:
    import torch

    made = compiled(lambda x: (x.sin() + 1).sum(-1))
    assert made(x=torch.ones(2, 3)).tolist() == pytest.approx([3 * (1 + 0.8414709848)] * 2)
    first = made.compilation(None)
    assert (first.graphs, first.graph_breaks, first.break_reasons, first.recompilations) == (1, 0, (), 0)
    assert first.cached_compile_ms is None
    again = made.compilation(lambda: made(x=torch.ones(2, 3)))
    assert again.compile_ms == first.compile_ms
    assert 0 < again.cached_compile_ms < first.compile_ms, "the first one called a C++ compiler"


def test_a_graph_break_has_its_place_and_reason(compiled: Callable[..., Any]) -> None:
    def forward(x: Any) -> Any:
        return x * x.sum().item()

    told = compiled(forward).compilation(None)
    assert told.graph_breaks >= 1
    (reason,) = told.break_reasons
    line = forward.__code__.co_firstlineno + 1
    assert reason.startswith(f"{Path(__file__).parent.name}/{Path(__file__).name}:{line} in forward: ")
    assert "Tensor.item()" in reason


def test_a_model_that_changes_compiles_again_until_that_is_refused(compiled: Callable[..., Any]) -> None:
    import torch

    calls = []

    def forward(x: Any) -> Any:
        calls.append(1)
        return x * len(calls)

    made = compiled(forward)
    made(x=torch.ones(2, 3))
    assert made.compilation(None).recompilations == 1
    for _ in range(6):
        made(x=torch.ones(2, 3))
    with pytest.raises(CellFailure, match=r"^each run compiled the model again, until torch\.compile gave up after 8: ") as caught:
        made(x=torch.ones(2, 3))
    assert caught.value.error_type == "recompile_limit"
    assert "calls" in str(caught.value), "what changes is named"
