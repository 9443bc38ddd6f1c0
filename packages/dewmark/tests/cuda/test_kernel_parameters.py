"""No kernel's parameter has a name that Triton's launcher uses itself: it would fail at its first launch."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path

import pytest

import dewmark.cuda

KERNELS = [  # read as text, because Triton need not be installed
    pytest.param(function, id=f"{path.stem}.{function.name}")
    for path in sorted(Path(dewmark.cuda.__file__).parent.glob("*.py"))
    for function in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(function, ast.FunctionDef)
    and any("triton.jit" in ast.unparse(each) for each in function.decorator_list)
]
# In Triton 3.6, some versions before it, and 3.9.
_NAMES = """
JITCallable allow_fp8e4nv allowed_dot_input_precisions arch args backend backend_name clc cluster_dims debug
default_dot_input_precision deprecated_fp8_dot_operand_dtypes device device_type enable_fp_fusion
enable_reflect_ftz extern_libs fpsan_homomorphic_casts grid instrumentation_mode ir_override kwargs
launch_cooperative_grid launch_pdl max_num_imprecise_acc_default maxnreg min_shared_mem num_ctas num_stages
num_warps options params ptx_options ptx_version sanitize_overflow sched4reg self specialization
specialize_impl stream supported_fp8_dtypes warmup warp_size
"""
RESERVED = frozenset(_NAMES.split())


def triton_names() -> set[str]:
    """The names that Triton's generated launcher, its caller and the compiler's options use."""
    jit = pytest.importorskip("triton.runtime.jit")
    compiler = pytest.importorskip("triton.backends.nvidia.compiler")
    launcher = jit.create_function_from_signature(inspect.signature(lambda: None), [], backend=None).__code__
    return {
        *launcher.co_varnames,
        *launcher.co_names,
        *inspect.signature(jit.JITFunction.run).parameters,
        *(field.name for field in dataclasses.fields(compiler.CUDAOptions)),
    }


def test_there_are_kernels() -> None:
    assert len(KERNELS) > 10


@pytest.mark.parametrize("kernel", KERNELS)
def test_no_parameter_has_a_reserved_name(kernel) -> None:
    names = {each.arg for each in (*kernel.args.args, *kernel.args.kwonlyargs)}
    assert not names & RESERVED


def test_the_list_holds_the_installed_triton_s_names() -> None:
    assert triton_names() <= RESERVED
