"""The child process that reads one PDF: its bytes from standard input, its text to standard output.

Started by `dewmark.serve.uploads`. It limits its own processor time and memory, so that a hostile file can
hurt nobody but this process. Exit code 3 comes with a line for the user; any other failure is the file's.
"""

from __future__ import annotations

import io
import logging
import resource
import sys

from dewmark.errors import MissingExtraError
from dewmark.extras import require

_SECONDS = 15
_MEMORY = 1 << 30
_PAGES = 2_000


def main(limit: int) -> int:
    """Write the text of all pages, at most ``limit`` characters and then a few."""
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        pypdf = require("pypdf", extra="serve")
    except MissingExtraError as error:
        return _refuse(str(error))
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = pypdf.PdfReader(io.BytesIO(sys.stdin.buffer.read()))
    if reader.is_encrypted and not reader.decrypt(""):
        return _refuse("the .pdf file is protected by a password: paste its text")
    if len(reader.pages) > _PAGES:
        return _refuse(f"the .pdf file has more than {_PAGES:,} pages: paste the part that matters")
    written = 0
    for page in reader.pages:
        text = page.extract_text().strip("\n") + "\n"
        written += len(text)
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        if written > limit:
            break
    return 0


def _refuse(message: str) -> int:
    sys.stderr.write(message + "\n")
    return 3


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
