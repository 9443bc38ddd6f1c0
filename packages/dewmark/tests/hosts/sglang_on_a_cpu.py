"""SGLang's server on a CPU without its kernels: python sglang_on_a_cpu.py ARGUMENTS of sglang.launch_server.

Two packages are replaced, which only exist in builds for GPUs and whose functions this path never calls:
`sgl_kernel`, whose functions raise an error when they are called, and torchvision. Everything that runs is
SGLang's own: on a CPU without AMX it falls back to torch by itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from unittest.mock import MagicMock


class Kernels(ModuleType):
    """In the place of `sgl_kernel`: its functions can be imported but not called."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)

        def missing(*_, **__):
            raise NotImplementedError(f"sgl_kernel.{name} has no build for this CPU")

        return missing


def replace_packages() -> None:
    """SGLang's processes import this file again, so each of them does this."""
    importlib.import_module("transformers").AutoProcessor  # noqa: B018 - before the stand-ins
    for name in ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2"):
        sys.modules[f"torchvision{name}"] = MagicMock(__path__=[], __spec__=None)
    sys.modules["sgl_kernel"] = Kernels("sgl_kernel")


if __name__ in {"__main__", "__mp_main__"}:
    replace_packages()

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
