"""The static files of the page, and the page as one file of its own."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
STYLES = ("page.css",)
LIBRARIES = ("vendor/echarts.common.min.js", "vendor/diff.min.js")
SCRIPTS = (
    *LIBRARIES,
    "dom.js",
    "format.js",
    "data.js",
    "layout.js",
    "tree.js",
    "charts.js",
    "code.js",
    "changes.js",
    "table.js",
    "node.js",
    "conversation.js",
    "run.js",
    "runs.js",
    "keys.js",
    "app.js",
)
CONTENT_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",  # no text becomes markup; dom.js makes the only policy
    "trusted-types": "default",
}


def read_asset(name: str) -> tuple[bytes, str] | None:
    """Return content and type of a static file of the page, or None. Only listed names exist."""
    if name not in (*STYLES, *SCRIPTS, "icon.svg"):
        return None
    return (STATIC / name).read_bytes(), CONTENT_TYPES[Path(name).suffix]


def served_page() -> str:
    """Return the page that asks a server for its data."""
    styles = "".join(f'<link rel="stylesheet" href="/static/{name}">' for name in STYLES)
    scripts = "".join(f'<script defer src="/static/{name}"></script>' for name in SCRIPTS)
    return _page("STARK", f'<link rel="icon" href="/static/icon.svg">{styles}{scripts}', "")


def standalone_page(title: str, data: dict[str, Any] | None, before: str = "", style: str = "") -> str:
    """Return the page as one file that holds its data (see ``stark.page.collection``) and needs no server.

    ``before`` is markup above it, with its ``style``. Without data the file holds nothing else.
    """
    names = SCRIPTS if data is not None else ()
    styles, scripts = ([(STATIC / name).read_text(encoding="utf-8") for name in each] for each in (STYLES, names))
    styles += [style] if style else []
    policy = {name: value for name, value in POLICY.items() if name != "frame-ancestors"}  # a page cannot state that
    policy |= {"script-src": _hashes(scripts) or "'none'", "style-src": _hashes(styles), "connect-src": "'none'"}
    policy |= {"img-src": "data:"}
    head = f'<meta http-equiv="Content-Security-Policy" content="{format_policy(policy)}">'
    head += "".join(f"<style>{each}</style>" for each in styles)
    if data is None:
        return _page(title, head, "", before)
    # Inside a script, only "</" and "<!--" could end the data early.
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    body = f'<script type="application/json" id="stark-data">{text}</script>'
    return _page(title, head, body + "".join(f"<script>{script}</script>" for script in scripts), before)


def format_policy(policy: dict[str, str]) -> str:
    """Return a content security policy as the value of its header."""
    return "; ".join(f"{name} {value}" for name, value in policy.items())


def _hashes(texts: list[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def _page(title: str, head: str, body: str, before: str = "") -> str:
    script_note = "" if before else "<noscript>This page needs JavaScript. In a terminal: stark show DIR</noscript>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title>{head}</head>"
        f"<body>{script_note}{before}"
        f'<div id="app"></div>{body}</body></html>'
    )
