"""The Python code of docs/interop/dlpack.md. Ends with 77 (skipped) where there is no NumPy."""

import sys

try:
    import numpy
except ImportError:
    print("numpy is not there: skipped")
    sys.exit(77)

# [snippet numpy]
import numpy
import packalloc

pool = packalloc.TensorPool("CPU")
tensor = pool.empty((3, 4), "float32")
tensor.copyin(b"\0" * tensor.nbytes)
array = numpy.from_dlpack(tensor)  # the same memory; torch.from_dlpack and jax.dlpack.from_dlpack take it too

row = packalloc.from_dlpack(numpy.arange(4, dtype="int16"))  # and the other way
print(row.shape, row.dtype, row.tobytes())
# [/snippet numpy]

assert array.sum() == 0 and array.ctypes.data == tensor.address
assert row.tobytes() == b"\0\0\1\0\2\0\3\0"
