"""The page as one file: everything inlined, nothing fetched."""

import base64
import hashlib
import html
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from analysis.page.gather import gather
from ladder.store import Store

REPORT = "report.html"
SCRIPTS = ("vendor/uPlot.iife.min.js", "assets/charts.js", "assets/figures.js", "assets/page.js")
STYLES = ("vendor/uPlot.min.css", "assets/page.css")


def report(store: Store, out: str | Path | None = None) -> str:
    """Write the page of `store` as one self-contained HTML file and return its path.

    out: a local file; default report.html in the store. Works at any stage of a ladder: what is not there yet
    is named on the page. Raises StoreError where there is no ladder.
    """
    page = render(gather(store))
    if out is None:
        store.write(REPORT, page)
        return store.path(REPORT)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(page, "utf-8")
    return str(out)


def render(data: dict[str, Any]) -> str:
    """The page of gathered data.

    Every name in the data reaches the document as text, never as markup; and the policy runs only our script,
    by its hash, and lets nothing be fetched. So markup in a name stays inert twice over.
    """
    script = "\n".join(_asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    headline = data["headline"]
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
    parts = {
        "policy": f"default-src 'none'; {allowed}",
        "title": html.escape(f"{data['ladder']['name']}: {headline['title']}"),
        "style": "\n".join(_asset(name) for name in STYLES),
        "summary": html.escape(f"{headline['title']} {headline['detail']}"),
        "data": _inert(json.dumps(data, allow_nan=False, separators=(",", ":"))),
        "script": script,
    }
    return re.sub(r"\[\[(\w+)\]\]", lambda match: parts[match[1]], _asset("assets/page.html"))


def _inert(text: str) -> str:
    """JSON that cannot end its script element or open a comment."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("analysis.page").joinpath(name).read_text("utf-8")
