"""index.html as a file: its content, what it must not contain, and its content security policy."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import importlib.resources
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from factory_rows import RUN, Database, example, steady, unmeasured
from hostile_rows import ATTACKS, hostile_rows
from repeated_rows import COMMAND, repeated_rows
from repeated_rows import RUN as REPEATED

from hwmatrix.report import page
from hwmatrix.report.write import write_reports

if TYPE_CHECKING:
    from pathlib import Path

FILES = importlib.resources.files("hwmatrix.report") / "page_files"
PARSING = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|createContextualFragment"
    r"|DOMParser|setHTML|srcdoc|\bon[a-z]+ ="
)


class Reader(html.parser.HTMLParser):
    """Every element with its attributes, and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text: list[str] = []
        self._in_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        else:
            self.text.append(data)

    @property
    def policy(self) -> str:
        (found,) = [
            attributes for tag, attributes in self.elements if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
        ]
        return str(found["content"])

    def document(self, name: str) -> Any:
        (found,) = [text for attributes, text in self.scripts if attributes.get("id") == name]
        return json.loads(found)


def written(database: Path, folder: Path) -> Reader:
    write_reports(database, folder)
    return Reader((folder / "index.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("page")
    return written(example(folder / "m.duckdb"), folder / "latest")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a hostile database and its reports, written once because that takes seconds."""
    folder = tmp_path_factory.mktemp("hostile")
    write_reports(hostile_rows(folder / "m.duckdb"), folder / "latest")
    return folder


def test_it_loads_nothing(shown: Reader) -> None:
    loading = {"src", "srcset", "data", "action", "formaction", "poster", "background", "ping", "manifest"}
    assert [(tag, name) for tag, attributes in shown.elements for name in attributes if name in loading] == []
    assert {tag for tag, _ in shown.elements} & {"link", "base", "iframe", "object", "embed", "img", "audio", "video", "form"} == {"form"}
    links = [str(attributes["href"]) for _, attributes in shown.elements if "href" in attributes]
    assert links
    assert all(link.startswith("#") for link in links)
    styles = "\n".join((FILES / name).read_text(encoding="utf-8") for name in page.STYLES)
    assert "url(" not in styles
    assert "@import" not in styles


def test_its_policy_allows_exactly_its_own_scripts(shown: Reader) -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in shown.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    running = [text for attributes, text in shown.scripts if attributes.get("type") != "application/json"]
    digests = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in running]
    assert sorted(rules["script-src"].split()) == sorted(digests)
    assert len(digests) == 3  # the theme, the library that runs on demand, and the rest


def test_our_scripts_never_parse_text_as_markup_or_code() -> None:
    for name in (*page.EARLY, *page.SCRIPTS):
        assert PARSING.findall((FILES / name).read_text(encoding="utf-8")) == [], name


def test_every_script_is_listed_short_and_described() -> None:
    names = {entry.name for entry in FILES.iterdir() if entry.name.endswith(".js")}
    assert names == {*page.EARLY, *page.SCRIPTS}
    for name in names:
        text = (FILES / name).read_text(encoding="utf-8")
        assert text.startswith("// "), name
        assert len(text.splitlines()) < 300, name
    assert {entry.name for entry in FILES.iterdir() if entry.name.endswith(".css")} == set(page.STYLES)
    assert {entry.name.partition(".")[0] for entry in (FILES / "views").iterdir()} == set(page.VIEWS)


def test_scripts_compute_no_statistic() -> None:
    """Numbers come from SQL. Scripts only print them, sort by them, and place them in charts."""
    computing = re.compile(r"Math\.(sqrt|pow|hypot)|reduce\(|median|variance|\bmean\b(?!_ms|:)", re.IGNORECASE)
    allowed = {'["Mean", Text.ms(cell.mean_ms)],', 'svg("line", {class: "median"'}
    for name in page.SCRIPTS:
        for line in (FILES / name).read_text(encoding="utf-8").splitlines():
            if computing.search(line) and not line.strip().startswith("//"):
                assert any(part in line for part in allowed), f"{name}: {line}"


def test_every_view_has_a_link(shown: Reader) -> None:
    sections = [attributes["id"] for tag, attributes in shown.elements if tag == "section"]
    assert sections == [f"view-{view}" for view in page.VIEWS]
    tabs = [attributes["href"] for tag, attributes in shown.elements if tag == "a" and "data-view" in attributes]
    assert tabs == [f"#view={view}" for view in page.VIEWS]
    identifiers = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


def test_the_specifications_are_in_it_with_shared_parts_once(shown: Reader) -> None:
    specs = shown.document("specs")
    assert specs["charts"].keys() == {"families", "matrix", "latency", "memory", "tradeoffs"}
    assert specs["charts"]["tradeoffs"]["datasets"] == {"rows": []}  # its scripts fill it from the cells
    assert all("config" not in spec for spec in specs["charts"].values())
    assert specs["config"]["range"]["category"]


def test_the_same_database_gives_the_same_page(tmp_path: Path) -> None:
    database = example(tmp_path / "m.duckdb")
    write_reports(database, tmp_path / "one")
    write_reports(database, tmp_path / "two")
    assert (tmp_path / "one" / "index.html").read_bytes() == (tmp_path / "two" / "index.html").read_bytes()


def test_injections_stay_text(hostile: Path) -> None:
    found = Reader((hostile / "latest" / "index.html").read_text(encoding="utf-8"))
    assert len(found.scripts) == 5
    names = {name for _, attributes in found.elements for name in attributes}
    assert {name for name in names if name.startswith("on")} == set()
    assert {tag for tag, _ in found.elements} & {"img", "iframe", "object", "embed", "link", "base"} == set()
    assert all(str(attributes["href"]).startswith("#") for _, attributes in found.elements if "href" in attributes)
    visible = "".join(found.text)
    assert "</script><script>window.__pwned = 1</script>" in visible
    for hidden in "\u202e\u2066\u2069\u200b\ufeff\x1b\x07\u2028\u2029":
        assert hidden not in visible
        assert hidden not in "".join(text for _, text in found.scripts[1:3])
    models = found.document("data")["rows"]["model"]["values"]
    assert f"good0 {ATTACKS[0]}" in models


def test_very_long_texts_are_cut_in_the_page(hostile: Path) -> None:
    assert (hostile / "m.duckdb").stat().st_size > 1_000_000
    assert (hostile / "latest" / "index.html").stat().st_size < 1_500_000


def test_650_models_on_8_targets_stay_below_8_megabytes(tmp_path: Path) -> None:
    found = written(repeated_rows(tmp_path / "m.duckdb"), tmp_path / "latest")
    assert (tmp_path / "latest" / "index.html").stat().st_size < 8_000_000
    document = found.document("data")
    assert document["run"] == REPEATED
    assert "not-a-measurement" in REPEATED
    assert "not a measurement" in COMMAND
    assert COMMAND in " ".join("".join(found.text).split())
    assert len(document["rows"]["cells"]) == 650
    assert all(len(row) == 8 and min(row) >= 0 for row in document["rows"]["cells"])


def test_a_page_of_one_cell(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        database.shard("s-cpu", "cpu")
        database.cell(database.plan("bert", "cpu"), "s-cpu", wall=steady(2.0))
    document = written(tmp_path / "m.duckdb", tmp_path / "latest").document("data")
    assert document["run"] == RUN
    assert document["rows"]["cells"] == [[0]]
    assert document["cells"]["key"] == {"same": "bert/cpu"}


def test_the_overview_names_the_models_that_each_obstacle_stops(tmp_path: Path) -> None:
    with Database(tmp_path / "m.duckdb") as database:
        database.run()
        for target in ("cpu", "openvino"):
            database.shard(target, target)
        for model, target, status in (
            *(("bert", "cpu", "crash"), ("bert", "openvino", "oom"), ("vit", "openvino", "oom"), ("vit", "cpu", "oom")),
            *(("t5", "cpu", "factory_error"),),
        ):
            database.cell(database.plan(model, target), target, **unmeasured(status))
    text = " ".join(" ".join(written(tmp_path / "m.duckdb", tmp_path / "latest").text).split())
    shown = text.partition("What stands in the way")[2].partition("All errors")[0]
    assert shown.count("memory_pressure on openvino container : bert , vit") == 1
    assert shown.index("memory_pressure on openvino") < shown.index("memory_pressure on cpu")
    assert "segmentation_fault on cpu container : bert" in shown
    assert "t5" not in shown, "it could not be made, which is no obstacle of a target"
