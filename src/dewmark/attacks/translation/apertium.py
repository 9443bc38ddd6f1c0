"""Rule-based machine translation by Apertium, whose programs and language pairs Debian packages.

A pair's mode file is a pipe of small programs, each of which answers a text that ends in a NUL at once. So
many texts go through each program in one run, which saves loading its dictionaries for every text. Only the
tagger carries rounding errors from text to text; it is started anew for each, so that a text's translation
does not depend on its neighbours. Boundary: plain text in, plain text out.
"""

from __future__ import annotations

import functools
import hashlib
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dewmark.errors import MissingExtraError, ModelError

__all__ = ["Apertium", "pairs"]

MODES = Path("/usr/share/apertium/modes")

# Apertium names languages by three letters, some older pairs by two.
_LONG = {
    "ca": "cat",
    "en": "eng",
    "eo": "epo",
    "es": "spa",
    "fr": "fra",
    "gl": "glg",
    "is": "isl",
    "pt": "por",
}
_ALONE = "apertium-tagger"
_TEXT_TO_STREAM, _STREAM_TO_TEXT = "apertium-destxt", "apertium-retxt"
_INSTALL = "install it with 'apt-get install apertium apertium-eng-spa'"


def pairs() -> list[str]:
    """The installed directions, by two-letter codes where there are any: ``en-es``."""
    short = {long: code for code, long in _LONG.items()}
    names = [mode.stem.split("-") for mode in sorted(MODES.glob("*-*.mode"))]
    return ["-".join(short.get(part, part) for part in name) for name in names if len(name) == 2]


@dataclass(frozen=True)
class Apertium:
    """One direction, ``source`` to ``target``, two-letter codes."""

    source: str
    target: str

    def __post_init__(self) -> None:
        if shutil.which(_TEXT_TO_STREAM) is None:
            raise MissingExtraError(f"apertium is not installed: {_INSTALL}")
        if self._mode is None:
            have = ", ".join(pairs()) or "none"
            raise ModelError(
                f"apertium has no pair {self.source}-{self.target} here (installed: {have}): install the "
                "Debian package of that pair (apt-cache search apertium), or choose another target"
            )

    @functools.cached_property
    def identity(self) -> str:
        """Changes when the programs called or the dictionaries do."""
        sums = hashlib.sha256()
        for program, *arguments in self._stages:
            sums.update(program.encode())
            for argument in arguments:
                sums.update(Path(argument).read_bytes() if Path(argument).is_file() else argument.encode())
        return f"apertium-{self.source}-{self.target}@{sums.hexdigest()[:12]}"

    def translate(self, texts: Sequence[str]) -> list[str]:
        """The translations; words that the dictionaries do not know stay as they are."""
        streams = [
            _run([_TEXT_TO_STREAM], text.replace("\0", " ").encode("utf-8", "replace")) for text in texts
        ]
        for stage in self._stages:
            together = [stream + b"\0" for stream in streams]
            flushing = [stage[0], "-z", *stage[1:]]  # answers each NUL at once
            if stage[0] == _ALONE:
                streams = [_run(flushing, stream).split(b"\0")[0] for stream in together]
            else:
                streams = _run(flushing, b"".join(together)).split(b"\0")[: len(texts)]
        if len(streams) != len(texts):
            raise ModelError(
                f"apertium gave {len(streams)} translations of {len(texts)} texts: {_INSTALL} anew"
            )
        return [_run([_STREAM_TO_TEXT], stream).decode("utf-8", "replace") for stream in streams]

    @functools.cached_property
    def _stages(self) -> list[list[str]]:
        """The programs of the pipe with their arguments."""
        mode = self._mode
        assert mode is not None, "checked when made"
        # $1 says how unknown words look (-n: plain), $2 asks for a tagger's ambiguities
        line = mode.read_text(encoding="utf-8").replace("$1", "-n").replace("$2", "")
        return [shlex.split(stage) for stage in line.strip().split("|")]

    @property
    def _mode(self) -> Path | None:
        long = "-".join(_LONG.get(code, code) for code in (self.source, self.target))
        names = (long, f"{self.source}-{self.target}")
        return next((MODES / f"{name}.mode" for name in names if (MODES / f"{name}.mode").is_file()), None)


def _run(command: Sequence[str], data: bytes) -> bytes:
    try:
        done = subprocess.run(command, input=data, capture_output=True, check=False)
    except OSError as error:
        raise MissingExtraError(f"cannot run {command[0]} ({error.strerror}): {_INSTALL}") from None
    if done.returncode != 0:
        reason = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise ModelError(f"{command[0]} failed ({reason or done.returncode}): {_INSTALL} anew")
    return done.stdout
