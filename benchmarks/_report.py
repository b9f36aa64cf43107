"""A report as one HTML file: headings, tables and plots inside it, nothing to fetch. Knows nothing of what is reported."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from jinja2 import Environment
from markupsafe import Markup
from matplotlib.figure import Figure

_PAGE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{{ title }}</title>
<style>
body { font: 15px/1.45 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: bold; padding: .3em 0; }
th, td { padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
svg { max-width: 100%; height: auto; }
pre { overflow-x: auto; background: #f4f4f4; padding: 1em; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for section in sections %}
<h2>{{ section.heading }}</h2>
{% for paragraph in section.paragraphs %}
<p>{{ paragraph }}</p>
{% endfor %}
{% for plot in section.plots %}
{{ plot }}
{% endfor %}
{% for table in section.tables %}
<div class="wide"><table>
{% if table.caption %}
<caption>{{ table.caption }}</caption>
{% endif %}
<thead><tr>{% for cell in table.header %}<th>{{ cell }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody>
</table></div>
{% endfor %}
{% for text in section.texts %}
<pre>{{ text }}</pre>
{% endfor %}
{% endfor %}
</body>
</html>
""")


@dataclass(frozen=True, kw_only=True)
class Table:
    """Cells are shown as they are; markup in them is escaped."""

    header: Sequence[object]
    rows: Sequence[Sequence[object]]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading with what stands below it: text, then plots, as `svg` makes them, then tables, then texts as they are typed."""

    heading: str
    paragraphs: Sequence[str] = ()
    plots: Sequence[Markup] = ()
    tables: Sequence[Table] = ()
    texts: Sequence[str] = ()


def svg(figure: Figure) -> Markup:
    """The plot as an SVG element that can stand in a page."""
    drawn = io.StringIO()
    # Text stays text, so that it can be searched and takes little room; equal plots give equal bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "report"}):
        figure.savefig(drawn, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    text = drawn.getvalue()
    # Without the XML declaration and the document type, which may stand at the start of a file only.
    return Markup(text[text.index("<svg") :])  # matplotlib escapes the text in it


def page(title: str, sections: Sequence[Section]) -> str:
    """The file's text."""
    return _PAGE.render(title=title, sections=sections)
