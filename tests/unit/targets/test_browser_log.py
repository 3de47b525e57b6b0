from __future__ import annotations

from pathlib import Path

import pytest

from hwmatrix.targets.browser.log import Nodes, combined, parse

RECORDED = Path(__file__).parents[1] / "recorded" / "browser"


def nodes(name: str) -> Nodes:
    return parse((RECORDED / name).read_text(encoding="utf-8").splitlines())


def test_nodes_left_on_the_cpu_are_counted_and_named() -> None:
    found = nodes("webgpu-bert.log")
    assert found.counts == {"CPU": 2, "WebGpu": 82}
    assert found.operators["CPU"] == {"Cast": 1, "GatherND": 1}
    assert found.operators["WebGpu"].total() == 82
    assert found.elsewhere("WebGpu") == ("Cast", "GatherND")
    placement = found.placement("WebGpu", about="software adapter")
    assert placement.on_target == pytest.approx(82 / 84)
    assert placement.detail == "nodes by ONNX Runtime's log: CPU 2 of 84 (Cast GatherND), WebGpu 82 of 84; software adapter"


def test_a_session_wholly_on_one_provider_lists_no_nodes() -> None:
    found = nodes("webgpu-vit.log")
    assert (found.counts, found.operators, found.elsewhere("WebGpu")) == ({"WebGpu": 81}, {}, ())
    assert found.share("WebGpu") == 1.0
    assert found.share("WebNN") == 0.0


def test_a_provider_that_fuses_nodes_is_counted_by_the_original_nodes() -> None:
    """The runtime lists the few fused nodes, but the share is that of the model's original nodes."""
    found = nodes("webnn-videomae.log")
    assert found.counts == {"WebNN": 73, "CPU": 1}
    assert found.operators["CPU"] == {"Conv": 1}
    assert found.share("WebNN") == pytest.approx(73 / 74)


def test_a_log_without_placement_proves_nothing() -> None:
    found = parse(["2026-11-20 06:01:20.1 [I:onnxruntime:, inference_session.cc:3094 Initialize] Session successfully initialized."])
    assert found.counts == {}
    assert found.placement("WebGpu", about="x").on_target == 0.0


def test_subgraphs_are_added() -> None:
    line = "[V:onnxruntime:, session_state.cc:1380 VerifyEachNodeIsAssignedToAnEp]  All nodes placed on [{}]. Number of nodes: {}"
    found = parse(
        [line.format("WebGpuExecutionProvider", 3), line.format("CPUExecutionProvider", 1), line.format("WebGpuExecutionProvider", 4)]
    )
    assert found.counts == {"WebGpu": 7, "CPU": 1}


def test_many_operators_are_cut_short() -> None:
    head = "[V:onnxruntime:, x] Node(s) placed on [CPUExecutionProvider]. Number of nodes: 20"
    lines = [f"[V:onnxruntime:, session_state.cc:1385 VerifyEachNodeIsAssignedToAnEp]   Op{index} (node)" for index in range(20)]
    assert " ...)" in parse([head, *lines]).placement("WebGpu", about="").detail


def test_several_sessions_have_the_nodes_of_all() -> None:
    together = combined([nodes("webgpu-bert.log"), nodes("webgpu-vit.log"), nodes("webgpu-bert.log")])
    assert together.counts == {"CPU": 4, "WebGpu": 245}
    assert together.operators["CPU"] == {"Cast": 2, "GatherND": 2}


def test_one_session_without_a_placement_leaves_that_of_all_unknown() -> None:
    together = combined([nodes("webgpu-vit.log"), parse([])])
    assert together.share("WebGpu") == 0.0
    assert "names no placement" in together.placement("WebGpu", about="an adapter").detail
