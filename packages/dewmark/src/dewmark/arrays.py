"""Short names for the numpy array types that signatures use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["F16", "F32", "F64", "I8", "I32", "I64", "U32", "U64", "Mask"]

F16 = NDArray[np.float16]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
I8 = NDArray[np.int8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Mask = NDArray[np.bool_]
