"""packalloc behind the objects of a Python program with TVM-FFI. Argument: the library of tvm_ffi_for_python.cc."""

# [snippet]
import ctypes
import sys

import tvm_ffi

allocator = ctypes.CDLL(sys.argv[1])
allocator.InstallPackalloc.restype = ctypes.c_char_p
why_not = allocator.InstallPackalloc(tvm_ffi.libinfo.find_libtvm_ffi().encode())
if why_not is not None:
    raise RuntimeError(why_not.decode())
# [/snippet]

print(tvm_ffi.convert([1, 2, 3]))
