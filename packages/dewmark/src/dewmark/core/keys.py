"""Secret keys and the random numbers derived from them.

A key is 32 secret bytes. It is never used directly: HKDF-SHA256 derives one sub-key per purpose, an
AES-256-CTR keystream under that sub-key gives bits, 53 of them give a uniform in (0, 1), and the inverse
normal CDF turns uniforms into normals, in float64 on the CPU. The same key and purpose therefore give the
same numbers on every machine, device and library version.

A *ring* is one key with several members, each with sub-keys of its own: every text is marked by one of them.
A key file may hold several *epochs*, each with a secret of its own: the last one marks, all of them detect.
``payload_bits`` says how long the messages are that texts carry (`dewmark.dew.ring`).

Serving engines with watermarks of their own take whole numbers instead. A key made from such numbers
(`Key.of_numbers`) works with the schemes that read those engines' marks, and with no other: it is too easy to
guess to derive anything else from it.

Only the fingerprint of a key is ever shown: the key itself appears in no repr, error, log or other file.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import hmac
import json
import math
import operator
import re
import secrets
import stat
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from scipy.special import ndtri

from dewmark.arguments import checked
from dewmark.arrays import F32, F64, I64
from dewmark.errors import KeyFileError
from dewmark.storage import atomic_write, read_small

__all__ = ["Key", "KeyStream"]

KEY_BYTES = 32
INDEPENDENT = 16
"""How many members of a ring have a matrix of their own; more share these, with different signs."""
MESSAGE_BITS = 16
"""The bits that signs can carry: those of a payload, and those of members beyond the independent ones."""

_HEADER = "dewmark-key-v1"
_EPOCHS_HEADER = "dewmark-key-v2"
_NUMBERS = re.compile(r"\d{1,99}(,\d{1,99})*")  # int() reads no number of thousands of digits
_EPOCH = re.compile(r"[A-Za-z0-9._-]{1,40}")


@checked
class Key:
    """A secret watermarking key of 32 bytes. ``numbers`` are the key of a serving engine, if it is one.

    ``members`` is the size of the ring, 1 for a plain key; ``payload_bits`` the length of the messages that
    texts carry. ``epoch`` names the key's epoch and ``retired`` are the keys of earlier ones, oldest first.
    """

    __slots__ = ("_secret", "epoch", "fingerprint", "members", "numbers", "payload_bits", "retired")

    def __init__(
        self,
        secret: bytes,
        *,
        members: int = 1,
        payload_bits: int = 0,
        epoch: str | None = None,
        retired: Sequence[Key] = (),
    ) -> None:
        if not isinstance(secret, bytes):
            raise KeyFileError(f"a key must be bytes, got {type(secret).__name__}")
        if len(secret) != KEY_BYTES:
            raise KeyFileError(
                f"a key must be {KEY_BYTES} bytes long, got {len(secret)}; "
                "make one with: dewmark key new --out FILE"
            )
        times, left = divmod(members, INDEPENDENT)
        small = 1 <= members <= INDEPENDENT
        if not small and (left or times & (times - 1) or not 0 < times <= 1 << MESSAGE_BITS):
            raise KeyFileError(
                f"a ring has 2 to {INDEPENDENT} members, or {INDEPENDENT} times a power of two up to "
                f"{INDEPENDENT << MESSAGE_BITS}, got {members}"
            )
        free = MESSAGE_BITS - (max(times, 1).bit_length() - 1)  # bits that the members leave to messages
        if not 0 <= payload_bits <= free:
            ring = "" if members == 1 else f" in a ring of {members}"
            raise KeyFileError(f"a payload has 0 to {free} bits{ring}, got {payload_bits}")
        self._secret, self.members, self.payload_bits = secret, members, payload_bits
        self.epoch = epoch
        self.retired = tuple(retired)
        self.numbers: tuple[int, ...] | None = None
        self.fingerprint: str = self.subkey("fingerprint")[:8].hex()

    @classmethod
    def generate(cls, *, payload_bits: int = 0) -> Key:
        """A new key from the operating system's secure random source."""
        return cls(secrets.token_bytes(KEY_BYTES), payload_bits=payload_bits)

    @classmethod
    def ring(cls, members: int, *, payload_bits: int = 0) -> Key:
        """A new key with several members: up to 16, or 16 times a power of two."""
        return cls(secrets.token_bytes(KEY_BYTES), members=members, payload_bits=payload_bits)

    def rotated(self, epoch: str | None = None, *, members: int | None = None) -> Key:
        """A new key for a new epoch, by default named after today, which retires this one.

        It has a fresh secret, so whoever learned the old one knows nothing about it.
        """
        if self.numbers is not None:
            raise KeyFileError("this key is a number, as vLLM and transformers take it: it has no epochs")
        today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
        name = today if epoch is None else epoch
        retired = Key(
            self._secret, members=self.members, payload_bits=self.payload_bits, epoch=self.epoch or "first"
        )
        if name in {key.epoch for key in (*self.retired, retired)}:
            raise KeyFileError(f"the key has an epoch {name!r} already: name the new one with --epoch NAME")
        if not _EPOCH.fullmatch(name):
            raise KeyFileError(f"an epoch's name has 1 to 40 letters, digits and . _ -, got {name!r}")
        return Key(
            secrets.token_bytes(KEY_BYTES),
            members=self.members if members is None else members,
            payload_bits=self.payload_bits,
            epoch=name,
            retired=(*self.retired, retired),
        )

    @property
    def is_plain(self) -> bool:
        """Whether it is one key alone: no ring, no payloads, no earlier epochs."""
        return self.members == 1 and self.payload_bits == 0 and not self.retired

    @property
    def independent(self) -> int:
        """How many members have a matrix of their own."""
        return min(self.members, INDEPENDENT)

    def check_use(self, *, member: int | None = None, payload: int | None = None) -> None:
        """Raise `KeyFileError` if the key has no such member, or no room for such a payload."""
        check_use(member, payload, members=self.members, payload_bits=self.payload_bits)

    def independent_member(self, number: int) -> Key:
        """The key of one of the independent members; of a plain key, the key itself."""
        if self.members == 1:
            return self
        return Key(self.subkey(f"ring/{number}"))

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> Key:
        """The key of a serving engine: one or more whole numbers, none negative."""
        try:
            whole = tuple(int(operator.index(number)) for number in numbers)
        except TypeError:
            whole = ()
        if not whole or min(whole) < 0:
            raise KeyFileError("an engine's key is one or more whole numbers, none negative")
        listed = ",".join(map(str, whole))
        key = cls(hashlib.sha256(f"dewmark/engine key {listed}".encode()).digest())
        key.numbers = whole
        return key

    @classmethod
    def load(cls, path: str | Path) -> Key:
        """Read a key file written by `save`, or the numbers of an engine's key, in a file or as the path."""
        path = Path(path)
        if is_engine_key(path):
            return cls.of_numbers([int(number) for number in str(path).split(",")])
        try:
            text = read_small(path).decode("ascii")
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise KeyFileError(f"no key file {path}; make one with: dewmark key new --out {path}") from None
        except UnicodeDecodeError:
            raise KeyFileError(f"{path} is not a key file (expected one line '{_HEADER} …')") from None
        except OSError as error:
            raise KeyFileError(f"cannot read key file {path}: {error.strerror}") from None
        header, _, digits = text.strip().partition(" ")
        if _NUMBERS.fullmatch(header):
            key = cls.of_numbers([int(number) for number in header.split(",")])
        elif header.splitlines()[:1] == [_EPOCHS_HEADER]:
            key = _read_epochs(path, text.splitlines()[1:])
        elif header != _HEADER:
            raise KeyFileError(f"{path} is not a key file (expected one line '{_HEADER} …')")
        else:
            try:
                secret = bytes.fromhex(digits)
            except ValueError:
                raise KeyFileError(f"key file {path} is damaged: its key is not hexadecimal") from None
            if len(secret) != KEY_BYTES:
                raise KeyFileError(f"key file {path} has {len(secret)} bytes, expected {KEY_BYTES}")
            key = cls(secret)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            warnings.warn(f"key file {path} is readable by others; run: chmod 600 {path}", stacklevel=2)
        return key

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the key to a new file with mode 0600; an existing one is overwritten only if asked."""
        if self.numbers is not None:
            text = ",".join(map(str, self.numbers))
        elif self.is_plain:
            text = f"{_HEADER} {self._secret.hex()}"
        else:
            text = _EPOCHS_HEADER
            for key in (*self.retired, self):
                row = {"epoch": key.epoch, "members": key.members, "payload_bits": key.payload_bits}
                text += "\n" + json.dumps({**row, "key": key._secret.hex()})
        with atomic_write(Path(path), private=True, overwrite=overwrite) as stream:
            stream.write(f"{text}\n".encode("ascii"))

    def subkey(self, purpose: str) -> bytes:
        """32 bytes derived from the key and the purpose, which reveal nothing about the key."""
        if self.numbers is not None:
            raise KeyFileError(
                "this key is a number, as vLLM and transformers take it: name the scheme of that engine "
                "(dewmark schemes), or make a key with: dewmark key new --out FILE"
            )
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=f"dewmark/{purpose}".encode()).derive(
            self._secret
        )

    def stream(self, purpose: str) -> KeyStream:
        """The key's random numbers for one purpose, from the start."""
        return KeyStream(self.subkey(purpose))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Key(fingerprint={self.fingerprint!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Key cannot be pickled: save it to a file and pass the path")


def check_use(member: int | None, payload: int | None, *, members: int, payload_bits: int) -> None:
    """Raise `KeyFileError` unless a key with these members and payloads can mark so, and detect it again."""
    if member is not None and not 0 <= member < members:
        raise KeyFileError(f"the key has members 0 to {members - 1}, got {member}")
    if payload is not None and not 0 <= payload < 1 << payload_bits:
        can = f"0 to {(1 << payload_bits) - 1}" if payload_bits else "none"
        raise KeyFileError(
            f"the key carries payloads of {payload_bits} bits ({can}), got {payload}; "
            "for longer ones make a key with: dewmark key new --payload-bits N --out FILE"
        )


def _read_epochs(path: Path, lines: Sequence[str]) -> Key:
    """The key of the last line, which retires those of the others."""
    keys: list[Key] = []
    try:
        for line in lines:
            row = json.loads(line)
            keys.append(
                Key(
                    bytes.fromhex(row["key"]),
                    members=int(row["members"]),
                    payload_bits=int(row["payload_bits"]),
                    epoch=None if row["epoch"] is None else str(row["epoch"]),
                    retired=keys if line == lines[-1] else (),
                )
            )
        return keys[-1]
    except KeyFileError as error:
        raise KeyFileError(f"key file {path} is damaged: {error}") from None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        pass
    raise KeyFileError(f"key file {path} is damaged: its epochs cannot be read")


def is_engine_key(path: Path) -> bool:
    """Whether a path is no file but the numbers of an engine's key, such as 42 or 654,400,836."""
    return _NUMBERS.fullmatch(str(path)) is not None and not path.exists()


class KeyStream:
    """Random numbers from a 32-byte seed: an AES-256-CTR keystream, read from its start."""

    def __init__(self, seed: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)

    def uniforms(self, count: int) -> F64:
        """``count`` uniforms in the open interval (0, 1), on a grid of 2⁻⁵³."""
        return _uniforms(self.words(count))

    def normals(self, *shape: int) -> F64:
        """Standard normals of the given shape, filled row by row."""
        normal: F64 = ndtri(self.uniforms(int(np.prod(shape))))
        return normal.reshape(shape)

    def float32_normals(self, count: int) -> F32:
        """The next ``count`` of `normals` in float32, within 1e-6 of them, in a fifth of the time.

        The 2¹² cells of (0, 1) have a parabola each; the outermost ones are computed exactly.
        """
        a, b, c = _parabolas()
        found = np.empty(count, dtype=np.float32)
        for i in range(0, count, _BLOCK):
            words, block = self.words(min(_BLOCK, count - i)), found[i : i + _BLOCK]
            # 1. the cell of each number, and its place f in it
            high = (words >> np.uint64(32)).astype(np.uint32)
            cell = (high >> np.uint32(32 - _CELL_BITS)).astype(np.intp)
            f = (high & np.uint32((1 << (32 - _CELL_BITS)) - 1)).astype(np.float32)
            f *= np.float32(2.0 ** (_CELL_BITS - 32))
            f -= np.float32(0.5)
            # 2. the parabola, in place
            c.take(cell, out=block)
            block *= f
            block += b.take(cell)
            block *= f
            block += a.take(cell)
            outer = np.flatnonzero((cell < _EXACT_CELLS) | (cell >= (1 << _CELL_BITS) - _EXACT_CELLS))
            block[outer] = ndtri(_uniforms(words[outer]))
        return found

    def permutation(self, size: int) -> I64:
        """A uniform permutation of ``range(size)``."""
        return np.argsort(self.words(size), kind="stable")


_CELL_BITS = 12
_EXACT_CELLS = 1 << (_CELL_BITS - 7)  # on either side: u below 1/128, where the parabolas are too coarse
_BLOCK = 1 << 14  # numbers, which stay in a core's cache


@functools.cache
def _parabolas() -> tuple[F32, F32, F32]:
    """Φ⁻¹ = a + f (b + f c) in each cell, for f in [-1/2, 1/2) across the cell."""
    width = 2.0**-_CELL_BITS
    z = ndtri((np.arange(1 << _CELL_BITS) + 0.5) * width)
    slope = width * math.sqrt(2.0 * math.pi) * np.exp(z * z / 2.0)
    return z.astype(np.float32), slope.astype(np.float32), (0.5 * z * slope * slope).astype(np.float32)


def _uniforms(words: NDArray[np.uint64]) -> F64:
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
