"""The frame shared by all HTML pages: one self-contained file without scripts, fonts or outside requests."""

from __future__ import annotations

import html

from dewmark.version import __version__

__all__ = ["escape", "html_page"]

# Styles come only from the page's own <style>, pictures only from the page itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

_STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f8; --card: #fff; --ink: #16181d; --soft: #5b616e; --line: #dcdfe4; --bad: #b42318; }
@media (prefers-color-scheme: dark) {
  :root { --page: #111317; --card: #1a1d23; --ink: #e8eaee; --soft: #9aa1ad; --line: #30353e;
    --bad: #ff8a75; }
}
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.6 system-ui, sans-serif; }
main { max-width: 56rem; margin: 0 auto; padding: 2rem 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 0; }
article { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem 1.25rem;
  margin: 1.25rem 0; }
.badge { display: inline-block; padding: .1rem .7rem; border-radius: 99px; font-weight: 600; color: #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; }
small, footer, figcaption, .soft { color: var(--soft); }
img { display: block; max-width: 100%; margin: 0 auto; border-radius: 6px; }
"""


def html_page(title: str, body: str, *, style: str = "") -> str:
    """A complete document; ``title`` is plain text, ``body`` is HTML, ``style`` adds to the common CSS."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n<body>\n<main>\n{body}"
        f"<footer>dewmark {__version__}</footer>\n</main>\n</body>\n</html>\n"
    )


def escape(text: str) -> str:
    """Plain text as HTML, also inside attributes."""
    # HTML parsers turn a bare carriage return into a line feed; a character reference survives.
    return html.escape(text, quote=True).replace("\r", "&#13;")
