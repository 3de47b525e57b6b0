"""The numbers of README.md, which ``hwmatrix publish`` writes between two marks: those of the published database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hwmatrix.basics.text import plural
from hwmatrix.report.charts import charts
from hwmatrix.report.grid import Column
from hwmatrix.report.numbers import over_cpu
from hwmatrix.report.totals import totals_of

if TYPE_CHECKING:
    from hwmatrix.report.rows import ReportRows

BEGIN: Final = "<!-- published: begin -->\n"
END: Final = "<!-- published: end -->\n"


def with_headline(text: str, rows: ReportRows) -> str:
    """A README with the numbers of these rows between its marks; unchanged if it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{begin}{headline(rows)}{end}{after}" if begin and end else text


def headline(rows: ReportRows) -> str:
    """The picture with its text, how many models pass where, and how fast those in full size are, as Markdown."""
    found = totals_of(rows)
    picture = next((chart for chart in charts(rows) if chart.name == "matrix"), None)
    lines = [f"![{picture.title}: {picture.alt}](reports/published/plots/matrix.svg)\n\n"] if picture is not None else []
    first: dict[str, str] = {}
    for line in found.lines:
        if line.models is not None:
            shown = line.column if line.column.dtype != "float32" else Column(target=line.column.target, isolation=line.column.isolation)
            more = f" ({line.models.changed} more pass with changes of ours)" if line.models.changed else ""
            counted = f"{line.models.passed} of {line.models.tried}{more}"
            first.setdefault(line.column.target, f"{shown.target} {shown.dtype}".strip() + f" {counted}")
    days = sorted({f"{span[name]:%Y-%m-%d}" for span in rows.analysis.span for name in ("oldest_at", "newest_at")})
    executed = sum(span["executed"] for span in rows.analysis.span)
    models = sum(span["models"] for span in rows.analysis.span)
    counted = f"{plural(models, 'model')} in {plural(executed, 'cell')}, executed {' to '.join(days)}"
    which = "Of the models that were tried there, in float32 unless named, one forward pass is right for"
    lines.append(f"*{counted}. {which}: {', '.join(first.values())}.")
    quiet = [row for row in rows.analysis.speeds if row["workload"] == "forward" and row["dtype"] in {None, "float32"}]
    quiet = [row for row in quiet if row["faster"] + row["slower"] + row["alike"] and not row["disturbed"]]
    quiet = [row for row in quiet if row["host"] == quiet[0]["host"]]
    if quiet:
        named = "; ".join(f"{row['target']} {over_cpu(row)}" for row in quiet)
        lines.append(f" Speed over cpu in float32, of full-size models on {quiet[0]['processor'] or 'one machine'}: {named}.")
    return "".join([*lines, "*\n"])
