"""libyaml reads what PyYAML's own parser reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from hwmatrix.basics.plain_yaml import composed, parsed

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[3] / "harness" / "hwmatrix"
FILES = sorted(PACKAGE.rglob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_the_package_s_files_have_the_same_data(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert parsed(text) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["a: [1", "!!python/object:os.system {}", "a: b: c"])
def test_what_is_no_plain_data_is_refused(text: str) -> None:
    with pytest.raises(yaml.YAMLError):
        parsed(text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_nodes_have_the_same_tags_and_lines(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert list(_listed(composed(text))) == list(_listed(yaml.compose(text, Loader=yaml.SafeLoader)))


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 100_000, "a: " + "[" * 2000 + "]" * 2000])
def test_deep_nesting_is_an_error_and_no_crash(text: str) -> None:
    with pytest.raises(yaml.YAMLError, match="nested too deeply"):
        parsed(text)
    with pytest.raises(yaml.YAMLError, match="nested too deeply"):
        composed(text)


def test_an_error_says_what_was_found() -> None:
    with pytest.raises(yaml.YAMLError, match=r"expected ',' or '\]', but got ':'"):
        composed("a: [1, 2\nb: 3\n")


def _listed(node: yaml.Node | None) -> Iterator[tuple[str, str, int]]:
    assert node is not None
    yield node.tag, node.value if isinstance(node, yaml.ScalarNode) else type(node).__name__, node.start_mark.line
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _listed(key)
            yield from _listed(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _listed(item)
