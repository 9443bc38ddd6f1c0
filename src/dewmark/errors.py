"""Every error dewmark raises on purpose.

A message is one line: what was wrong, the value, and the remedy. The command line prints it and exits
with code 2; nothing else in the library catches these.

    DewmarkError
    ├── ConfigError            a parameter out of range, or two that do not go together
    │   └── UnknownNameError   no such scheme, model, encoder or parameter (says what was probably meant)
    ├── InputError             a text, prompt or input file that cannot be used
    ├── KeyFileError           a key of the wrong length, a broken or missing key file
    ├── ModelError             a model that cannot be fetched, found or loaded
    │   └── VocabularyError    a table, tokenizer and model that do not belong together
    ├── ArtifactError          a stored table or detector that is corrupt or incomplete
    ├── NumericalError         NaN or infinite numbers where finite ones are needed
    ├── StorageError           the disk is full or a path cannot be written
    ├── WorkerError            a worker process failed, or died over the same work again and again
    └── MissingExtraError      an optional library that is not installed (says the install command)
"""

from __future__ import annotations

__all__ = [
    "ArtifactError",
    "ConfigError",
    "DewmarkError",
    "InputError",
    "KeyFileError",
    "MissingExtraError",
    "ModelError",
    "NumericalError",
    "StorageError",
    "UnknownNameError",
    "VocabularyError",
    "WorkerError",
]


class DewmarkError(Exception):
    """Base class of all errors raised on purpose by dewmark."""


class ConfigError(DewmarkError, ValueError):
    """A parameter is out of range, or two parameters do not go together."""


class UnknownNameError(ConfigError):
    """A name that no table knows."""


class InputError(DewmarkError, ValueError):
    """A text, prompt or input file cannot be used."""


class KeyFileError(DewmarkError, ValueError):
    """A key has the wrong length, or a key file is broken or missing."""


class ModelError(DewmarkError, RuntimeError):
    """A model cannot be fetched, found or loaded."""


class VocabularyError(ModelError):
    """A table, a tokenizer and a model do not belong together."""


class ArtifactError(DewmarkError, RuntimeError):
    """A stored table or detector is corrupt or incomplete."""


class NumericalError(DewmarkError, ArithmeticError):
    """NaN or infinite numbers appeared where finite ones are needed."""


class StorageError(DewmarkError, OSError):
    """The disk is full, or a path cannot be written."""


class WorkerError(DewmarkError, RuntimeError):
    """A worker process failed, or died over the same work again and again."""


class MissingExtraError(DewmarkError, ImportError):
    """An optional library is not installed."""
