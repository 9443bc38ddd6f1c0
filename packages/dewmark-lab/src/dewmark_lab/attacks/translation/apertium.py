"""Rule-based machine translation by Apertium, whose programs and language pairs come as Debian packages.

A language pair's mode file is a pipeline of small programs, which process NUL-terminated texts one by one. So
many texts go through each program in one run, which loads its dictionaries once. Only the tagger carries
rounding errors from text to text; it is restarted for each, so that a translation does not depend on the
other texts. Boundary: plain text in, plain text out.
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
_TAGGER = "apertium-tagger"
_TEXT_TO_STREAM, _STREAM_TO_TEXT = "apertium-destxt", "apertium-retxt"
_INSTALL = "install it with 'apt-get install apertium apertium-eng-spa'"


def pairs() -> list[str]:
    """The installed directions such as ``en-es``, in two-letter codes where they exist."""
    short = {long: code for code, long in _LONG.items()}
    names = [mode.stem.split("-") for mode in sorted(MODES.glob("*-*.mode"))]
    return ["-".join(short.get(part, part) for part in name) for name in names if len(name) == 2]


@dataclass(frozen=True)
class Apertium:
    """One direction, from ``source`` to ``target`` (two-letter codes)."""

    source: str
    target: str

    def __post_init__(self) -> None:
        if shutil.which(_TEXT_TO_STREAM) is None:
            raise MissingExtraError(f"apertium is not installed: {_INSTALL}")
        if self._mode is None:
            have = ", ".join(pairs()) or "none"
            raise ModelError(
                f"apertium has no pair {self.source}-{self.target} (installed: {have}): install its Debian "
                "package (apt-cache search apertium), or choose another target"
            )

    @functools.cached_property
    def identity(self) -> str:
        """A hash of the pipeline's commands and dictionaries."""
        sums = hashlib.sha256()
        for program, *arguments in self._stages:
            sums.update(program.encode())
            for argument in arguments:
                sums.update(Path(argument).read_bytes() if Path(argument).is_file() else argument.encode())
        return f"apertium-{self.source}-{self.target}@{sums.hexdigest()[:12]}"

    def translate(self, texts: Sequence[str]) -> list[str]:
        """Translate texts; words that the dictionaries do not contain stay untranslated."""
        streams = [
            _run([_TEXT_TO_STREAM], text.replace("\0", " ").encode("utf-8", "replace")) for text in texts
        ]
        for stage in self._stages:
            together = [stream + b"\0" for stream in streams]
            flushing = [stage[0], "-z", *stage[1:]]  # -z: flush after each NUL
            if stage[0] == _TAGGER:
                streams = [_run(flushing, stream).split(b"\0")[0] for stream in together]
            else:
                streams = _run(flushing, b"".join(together)).split(b"\0")[: len(texts)]
        if len(streams) != len(texts):
            raise ModelError(
                f"apertium returned {len(streams)} translations of {len(texts)} texts: re{_INSTALL}"
            )
        return [_run([_STREAM_TO_TEXT], stream).decode("utf-8", "replace") for stream in streams]

    @functools.cached_property
    def _stages(self) -> list[list[str]]:
        """The commands of the pipeline."""
        mode = self._mode
        assert mode is not None, "checked by __post_init__"
        # $1 formats unknown words (-n: plain), $2 shows a tagger's ambiguities
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
        raise ModelError(f"{command[0]} failed ({reason or done.returncode}): re{_INSTALL}")
    return done.stdout
