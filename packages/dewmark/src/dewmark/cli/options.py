"""Options that several commands share, and the library objects that they name."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dewmark import config
from dewmark.errors import ConfigError

if TYPE_CHECKING:
    from dewmark.core.keys import Key
    from dewmark.decoding import DecodingOptions
    from dewmark.manifests import Signs
    from dewmark.scheme import BoundScheme
    from dewmark.watermark import Watermark
    from dewmark.workspace import Progress

__all__ = [
    "BatchSize",
    "Certificate",
    "CertificateKey",
    "Chat",
    "Detector",
    "Device",
    "Dtype",
    "FalsePositiveRate",
    "Host",
    "Json",
    "KeyFile",
    "OptionalKeyFile",
    "OwnTemperature",
    "OwnTopP",
    "PolicyFile",
    "Prompt",
    "Quiet",
    "Reader",
    "Roots",
    "Rows",
    "SchemeName",
    "Seed",
    "Settings",
    "Temperature",
    "Test",
    "TextFiles",
    "TopP",
    "check_marks",
    "decoding_options",
    "load_key",
    "load_provider",
    "load_watermark",
    "numbers",
    "open_detector",
]

KEY, TEST, DECODING, OUTPUT = "Key and scheme", "Test", "Decoding", "Output"  # panels of --help
UNMARKED = "none"  # the --scheme that leaves no mark and needs no key

of_key = functools.partial(typer.Option, rich_help_panel=KEY)
of_test = functools.partial(typer.Option, rich_help_panel=TEST)
of_decoding = functools.partial(typer.Option, rich_help_panel=DECODING)
of_output = functools.partial(typer.Option, rich_help_panel=OUTPUT)

_KEY_HELP = "Key file (make one with: dewmark key new)."

KeyFile = Annotated[Path, of_key("--key", metavar="FILE", help=_KEY_HELP)]
OptionalKeyFile = Annotated[Path | None, of_key("--key", metavar="FILE", help=_KEY_HELP)]
KeyFiles = Annotated[list[Path] | None, of_key("--key", metavar="FILE", help=_KEY_HELP + " Repeatable.")]
KeyFolder = Annotated[Path | None, of_key("--keys", metavar="DIR", help="Like --key, for a folder's *.key.")]
Payload = Annotated[
    str | None,
    of_key(
        "--payload", metavar="NUMBER", help="Message that texts carry, such as 0x2f (key new --payload-bits)."
    ),
]
Member = Annotated[
    int | None,
    of_key("--member", min=0, show_default="one per text, by seed", help="Member of the ring that marks."),
]
Attempts = Annotated[
    int, of_test("--attempts", min=1, help="Versions of each text that you try: p-values pay for all.")
]
Certificate = Annotated[
    Path | None,
    of_output(
        "--certificate",
        metavar="CHAIN.pem",
        help="Sign a C2PA manifest into every text: your certificate chain, your own certificate first.",
    ),
]
CertificateKey = Annotated[
    Path | None,
    of_output("--certificate-key", metavar="KEY.pem", help="The private key of --certificate, unencrypted."),
]
Roots = Annotated[
    Path | None,
    of_test(
        "--roots",
        metavar="ROOTS.pem",
        help="Certificates under which signers of C2PA manifests are trusted; says if one is missing.",
    ),
]
Host = Annotated[
    str | None,
    of_key(
        "--host",
        metavar="MODEL",
        help="A packaged name (see dewmark models list), a folder or a hub id.",
        show_default="smollm2-135m",
    ),
]
SchemeName = Annotated[
    str | None,
    of_key(
        "--scheme",
        metavar="NAME",
        show_default="dew",
        help="Scheme (see dewmark schemes), or one of your own: FILE.py:CLASS.",
    ),
]
Settings = Annotated[
    list[str] | None,
    of_key("--set", metavar="NAME=VALUE", help="Set a parameter of the scheme, e.g. k=5; repeatable."),
]
Strength = Annotated[
    str | None,
    of_key(metavar="exact|free|strong|NUMBER", help="How strong the default's mark is.", show_default="free"),
]
Detector = Annotated[
    Path | None,
    of_key("--detector", metavar="DIR", help="Exported detector, instead of --key, --host and --set."),
]
Reader = Annotated[
    str | None,
    of_key(
        "--reader",
        metavar="MODEL|DIR|host|none",
        show_default="the packaged one",
        help="Predicts each word, so that surprising ones weigh more: a model, or a trained reader.",
    ),
]
Test = Annotated[
    str | None,
    of_test(
        "--test",
        metavar="NAME",
        show_default="the scheme's first",
        help="Another test of the scheme (see docs/detection.md).",
    ),
]
PolicyFile = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="default|FILE.json",
        show_default="mark everything",
        help="Leave code, JSON, quotations of the prompt and numbers unmarked.",
    ),
]
Prompt = Annotated[
    str | None, typer.Option("--prompt", metavar="TEXT", help="Prompt that the texts continue; never scored.")
]
TextFiles = Annotated[
    list[str] | None, typer.Argument(metavar="[TEXTFILE… | -]", help="Text files; - is standard input.")
]
Rows = Annotated[
    str | None,
    typer.Option(
        "--in",
        "--jsonl",
        metavar="FILE|URL",
        help="Read the text of each row (after its prompt, if any) of a JSONL or Parquet file or a folder of "
        "Parquet files: a path, s3://, gs://, http(s)://.",
    ),
]
FalsePositiveRate = Annotated[
    float, of_test("--fpr", help="False-positive rate: share of keys that call an unmarked text marked.")
]
Temperature = Annotated[float, typer.Option("--temperature", help="Sampling temperature, above 0 to mark.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the likeliest tokens with this probability.")]
_OWN, _OWN_TOP_K = "1; the host's own in chat", "0; the host's own in chat"
OwnTemperature = Annotated[
    float | None, of_decoding("--temperature", help="Temperature, above 0 to mark.", show_default=_OWN)
]
OwnTopP = Annotated[
    float | None,
    of_decoding("--top-p", help="Keep the likeliest tokens with this probability.", show_default=_OWN),
]
OwnTopK = Annotated[
    int | None, of_decoding("--top-k", help="Keep the k likeliest tokens; 0: all.", show_default=_OWN_TOP_K)
]
Chat = Annotated[
    bool, of_decoding("--chat", help="Answer requests in the host's chat template, as the host decodes.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the first text; text i gets seed + i.")]
Device = Annotated[str, typer.Option("--device", help="Device: auto, cpu, cuda, cuda:1, mps …")]
Dtype = Annotated[str, typer.Option("--dtype", help="Precision of the host: auto, float32, bfloat16 …")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Texts per batch.")]
Json = Annotated[bool, of_output("--json", help="Print JSON, one object per line.")]
Quiet = Annotated[bool, of_output("--quiet", "-q", help="Print no progress or messages.")]


def load_key(file: Path | None) -> Key:
    """The key that --key names."""
    from dewmark.core.keys import Key

    if file is None:
        raise ConfigError("no key given: add --key FILE (make one with: dewmark key new --out FILE)")
    return Key.load(file)


def load_provider(chain: Path | None, private_key: Path | None) -> Signs | None:
    """Who signs the texts, by --certificate and --certificate-key."""
    if chain is None and private_key is None:
        return None
    if chain is None or private_key is None:
        raise ConfigError("--certificate and --certificate-key go together: give both or neither")
    from dewmark.manifests import MANIFESTS

    provider: Signs = MANIFESTS["sign"](chain, private_key)
    return provider


def load_watermark(
    key: Key,
    *,
    host: str | None,
    scheme: str | None,
    settings: Sequence[str] | None,
    progress: Progress,
    device: str = "auto",
    dtype: str = "auto",
) -> Watermark:
    """A scheme on a host that can write; options that were not given keep the library's defaults."""
    from dewmark.opening import DEFAULT_HOST
    from dewmark.watermark import Watermark

    return Watermark(
        key,
        host=host or DEFAULT_HOST,
        scheme=scheme or "dew",
        settings=config.parse_settings(settings or ()),
        device=device,
        dtype=dtype,
        progress=progress,
    )


def open_detector(
    detector: Path | None,
    key: Path | None,
    host: str | None,
    scheme: str | None,
    settings: Sequence[str] | None,
    *,
    reader: str | None = None,
    progress: Progress,
) -> BoundScheme:
    """The detector that the options name: an exported folder, or a key with a host and a scheme."""
    from dewmark import batch

    return batch.open_detector(
        folder=detector,
        key=key,
        host=host,
        scheme=scheme,
        settings=config.parse_settings(settings or ()),
        reader=reader,
        progress=progress,
    )


def numbers(given: str, kind: type[int] | type[float], *, option: str) -> list[Any]:
    """The distinct positive numbers of a comma-separated list, in ascending order."""
    try:
        found = sorted({kind(part) for part in given.split(",") if part.strip()})
    except ValueError:
        found = []
    if not found or not found[0] > 0:
        raise ConfigError(f"{option} needs positive numbers separated by commas, got {given!r}")
    return found


def decoding_options(**values: float | None) -> DecodingOptions:
    """The decoding options that were given."""
    return cast("DecodingOptions", {name: value for name, value in values.items() if value is not None})


def check_marks(scheme: str | None) -> None:
    """Raise `ConfigError` for --scheme none where a mark is needed."""
    if scheme == UNMARKED:
        raise ConfigError("scheme none leaves no mark: name a scheme that marks")


def whole_number(value: str | None, option: str) -> int | None:
    """A number given as 47, 0x2f or 0b101111; None if it is not given."""
    if value is None:
        return None
    try:
        return int(value, 0)
    except ValueError:
        raise ConfigError(f"{option} takes a whole number such as 47 or 0x2f, got {value!r}") from None
