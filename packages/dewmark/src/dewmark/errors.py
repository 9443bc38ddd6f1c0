"""Every error that dewmark raises on purpose.

A message is one line: the problem, the value and the remedy. The command line prints it and exits with code
2; nothing else in the library catches these errors.

    DewmarkError
    ├── ConfigError            a parameter is out of range, or two are incompatible
    │   └── UnknownNameError   no such scheme, model, encoder or parameter (suggests the nearest name)
    ├── InputError             a text, prompt or input file cannot be used
    ├── KeyFileError           a key has the wrong length, or a key file is damaged or missing
    ├── SignatureError         a signed document is damaged, changed, or signed by somebody else
    ├── ModelError             a model cannot be fetched, found or loaded
    │   └── VocabularyError    a table, a tokenizer and a model do not belong together
    ├── ArtifactError          a stored table or detector is corrupt or incomplete
    ├── NumericalError         NaN or infinite values where finite ones are needed
    ├── StorageError           the disk is full, or a path cannot be written
    ├── WorkerError            a worker process failed, or died repeatedly on the same work
    └── MissingExtraError      an optional library is not installed (gives the install command)
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
    "SignatureError",
    "StorageError",
    "UnknownNameError",
    "VocabularyError",
    "WorkerError",
]


class DewmarkError(Exception):
    """Base class of all errors raised on purpose by dewmark."""


class ConfigError(DewmarkError, ValueError):
    """A parameter is out of range, or two parameters are incompatible."""


class UnknownNameError(ConfigError):
    """A name that is not registered."""


class InputError(DewmarkError, ValueError):
    """A text, prompt or input file cannot be used."""


class KeyFileError(DewmarkError, ValueError):
    """A key has the wrong length, or a key file is damaged or missing."""


class SignatureError(DewmarkError, ValueError):
    """A signed document is damaged, changed, or signed by somebody else."""


class ModelError(DewmarkError, RuntimeError):
    """A model cannot be fetched, found or loaded."""


class VocabularyError(ModelError):
    """A table, a tokenizer and a model do not belong together."""


class ArtifactError(DewmarkError, RuntimeError):
    """A stored table or detector is corrupt or incomplete."""


class NumericalError(DewmarkError, ArithmeticError):
    """NaN or infinite values appeared where finite ones are needed."""


class StorageError(DewmarkError, OSError):
    """The disk is full, or a path cannot be written."""


class WorkerError(DewmarkError, RuntimeError):
    """A worker process failed, or died repeatedly on the same work."""


class MissingExtraError(DewmarkError, ImportError):
    """An optional library is not installed."""
