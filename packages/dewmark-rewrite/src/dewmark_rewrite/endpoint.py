"""A chat model behind an OpenAI-compatible endpoint, asked for drafts of sentences.

The API key is read from an environment variable and sent nowhere else. Sentences leave this machine; the
watermark's key never does.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass

from dewmark.errors import ConfigError, ModelError

_KEY_VARIABLE = "OPENAI_API_KEY"
_TIMEOUT = 120.0


@dataclass(frozen=True)
class ChatEndpoint:
    """An endpoint's address and the name of its model."""

    base_url: str
    model: str

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"--endpoint takes an http address such as http://localhost:8000/v1, "
                              f"got {self.base_url!r}")  # fmt: skip
        if not self.model:
            raise ConfigError("--endpoint needs the name of its model: add --model NAME")

    def answer(self, request: str, *, seed: int) -> str:
        """The model's answer to one message."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": request}],
            "temperature": 1.0,
            "seed": seed,
        }
        key = os.environ.get(_KEY_VARIABLE, "").strip()
        asked = urllib.request.Request(
            f"{self.base_url.rstrip('/')}/chat/completions",
            data=json.dumps(body).encode("utf-8"),
            headers={
                "Content-Type": "application/json",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
        )
        try:
            with urllib.request.urlopen(asked, timeout=_TIMEOUT) as reply:
                return str(json.load(reply)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            raise ModelError(
                f"the endpoint {self.base_url} answered {error.code}: check its model and ${_KEY_VARIABLE}"
            ) from None
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ModelError(
                f"no answer from the endpoint {self.base_url} ({type(error).__name__}): check its address"
            ) from None
