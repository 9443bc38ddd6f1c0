"""Secret keys and the random numbers derived from them.

A key is 32 secret bytes. It is never used directly: HKDF-SHA256 derives one sub-key per purpose, an
AES-256-CTR keystream under that sub-key gives bits, 53 of them give a uniform in (0, 1), and the inverse
normal CDF turns uniforms into normals, in float64 on the CPU. The same key and purpose therefore give the
same numbers on every machine, device and library version.

Serving engines with watermarks of their own take whole numbers instead. A key made from such numbers
(`Key.of_numbers`) works with the schemes that read those engines' marks, and with no other: it is too easy to
guess to derive anything else from it.

Only the fingerprint of a key is ever shown: the key itself appears in no repr, error, log or other file.
"""

from __future__ import annotations

import hashlib
import hmac
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

from dewmark.arrays import F64, I64
from dewmark.errors import KeyFileError
from dewmark.storage import atomic_write

__all__ = ["Key", "KeyStream", "is_engine_key"]

KEY_BYTES = 32
_HEADER = "dewmark-key-v1"
_NUMBERS = re.compile(r"\d+(,\d+)*")


class Key:
    """A secret watermarking key of 32 bytes. ``numbers`` are the key of a serving engine, if it is one."""

    __slots__ = ("_secret", "fingerprint", "numbers")

    def __init__(self, secret: bytes) -> None:
        if not isinstance(secret, bytes):
            raise KeyFileError(f"a key must be bytes, got {type(secret).__name__}")
        if len(secret) != KEY_BYTES:
            raise KeyFileError(
                f"a key must be {KEY_BYTES} bytes long, got {len(secret)}; "
                "make one with: dewmark key new --out FILE"
            )
        self._secret = secret
        self.numbers: tuple[int, ...] | None = None
        self.fingerprint: str = self.subkey("fingerprint")[:8].hex()

    @classmethod
    def generate(cls) -> Key:
        """A new key from the operating system's secure random source."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def of_numbers(cls, numbers: Sequence[int]) -> Key:
        """The key of a serving engine: one or more whole numbers, none negative."""
        if not numbers or min(numbers) < 0:
            raise KeyFileError("an engine's key is one or more whole numbers, none negative")
        listed = ",".join(map(str, numbers))
        key = cls(hashlib.sha256(f"dewmark/engine key {listed}".encode()).digest())
        key.numbers = tuple(numbers)
        return key

    @classmethod
    def load(cls, path: str | Path) -> Key:
        """Read a key file written by `save`, or the numbers of an engine's key, in a file or as the path."""
        path = Path(path)
        if is_engine_key(path):
            return cls.of_numbers([int(number) for number in str(path).split(",")])
        try:
            text = path.read_text(encoding="ascii")
            mode = path.stat().st_mode
        except FileNotFoundError:
            raise KeyFileError(f"no key file {path}; make one with: dewmark key new --out {path}") from None
        except UnicodeDecodeError:
            raise KeyFileError(f"{path} is not a key file (expected one line '{_HEADER} …')") from None
        except OSError as error:
            raise KeyFileError(f"cannot read key file {path}: {error.strerror}") from None
        header, _, digits = text.strip().partition(" ")
        if _NUMBERS.fullmatch(header):
            _warn_if_readable(path, mode)
            return cls.of_numbers([int(number) for number in header.split(",")])
        if header != _HEADER:
            raise KeyFileError(f"{path} is not a key file (expected one line '{_HEADER} …')")
        try:
            secret = bytes.fromhex(digits)
        except ValueError:
            raise KeyFileError(f"key file {path} is damaged: its key is not hexadecimal") from None
        if len(secret) != KEY_BYTES:
            raise KeyFileError(f"key file {path} has {len(secret)} bytes, expected {KEY_BYTES}")
        _warn_if_readable(path, mode)
        return cls(secret)

    def save(self, path: str | Path) -> None:
        """Write the key to a new file with mode 0600; an existing file is never overwritten."""
        text = f"{_HEADER} {self._secret.hex()}" if self.numbers is None else ",".join(map(str, self.numbers))
        with atomic_write(Path(path), private=True, overwrite=False) as stream:
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


def is_engine_key(path: Path) -> bool:
    """Whether a path is no file but the numbers of an engine's key, such as 42 or 654,400,836."""
    return _NUMBERS.fullmatch(str(path)) is not None and not path.exists()


def _warn_if_readable(path: Path, mode: int) -> None:
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.warn(f"key file {path} is readable by others; run: chmod 600 {path}", stacklevel=3)


class KeyStream:
    """Random numbers from a 32-byte seed: an AES-256-CTR keystream, read from its start."""

    def __init__(self, seed: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)

    def uniforms(self, count: int) -> F64:
        """``count`` uniforms in the open interval (0, 1), on a grid of 2⁻⁵³."""
        return ((self.words(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def normals(self, *shape: int) -> F64:
        """Standard normals of the given shape, filled row by row."""
        normal: F64 = ndtri(self.uniforms(int(np.prod(shape))))
        return normal.reshape(shape)

    def permutation(self, size: int) -> I64:
        """A uniform permutation of ``range(size)``."""
        return np.argsort(self.words(size), kind="stable")
