"""packalloc's tensor pools for Python: memory of any backend, shared with NumPy, PyTorch and others by DLPack.

    import numpy, packalloc

    pool = packalloc.TensorPool("CPU")
    t = pool.empty((3, 4), "float32")
    a = numpy.from_dlpack(t)              # the same memory, no copy
    a[:] = 1
    back = packalloc.from_dlpack(a)       # and the other way

The compiled part is found beside this file, or at $PACKALLOC_PYTHON_LIBRARY.
"""

import ctypes
import operator
import os
import re

__all__ = ["Error", "Tensor", "TensorPool", "from_dlpack"]

_CPU, _CUDA = 1, 2


class Error(RuntimeError):
    """What the library answered instead of a result."""


class _Info(ctypes.Structure):
    _fields_ = [
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_uint64),
        ("nbytes", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("byte_offset", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("read_only", ctypes.c_uint32),
    ]


class _Statistics(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "hits", "misses", "evictions", "cached_bytes", "in_use_bytes", "peak_in_use_bytes")]


_path = os.environ.get("PACKALLOC_PYTHON_LIBRARY") or os.path.join(os.path.dirname(__file__), "libpackalloc_python.so")
if not os.path.exists(_path):
    raise ImportError(f"packalloc: there is no {_path}; build it (ninja -C build python/libpackalloc_python.so) and name "
                      "it in PACKALLOC_PYTHON_LIBRARY")
# PyDLL keeps the interpreter lock: capsules are made and taken apart inside.
_library = ctypes.PyDLL(_path)
_SHAPE = (ctypes.POINTER(ctypes.c_int64), ctypes.c_uint64)
_DTYPE = (ctypes.c_uint8, ctypes.c_uint8, ctypes.c_uint16)
_OUT = ctypes.POINTER(ctypes.c_void_p)


def _function(name, result, *arguments):
    function = getattr(_library, "packalloc_python_" + name)
    function.restype = result
    function.argtypes = arguments
    return function


_last_error = _function("last_error", ctypes.c_char_p)
_pool_new = _function("pool_new", ctypes.c_int, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32,
                      ctypes.c_int32, _OUT)
_pool_statistics = _function("pool_statistics", None, ctypes.c_void_p, ctypes.POINTER(_Statistics))
_pool_delete = _function("pool_delete", None, ctypes.c_void_p)
_pool_clear = _function("pool_clear", ctypes.c_int, ctypes.c_void_p)
_pool_used_memory = _function("pool_used_memory", ctypes.c_uint64, ctypes.c_void_p)
_pool_empty = _function("pool_empty", ctypes.c_int, ctypes.c_void_p, *_SHAPE, *_DTYPE, _OUT)
_tensor_delete = _function("tensor_delete", None, ctypes.c_void_p)
_tensor_view = _function("tensor_view", ctypes.c_int, ctypes.c_void_p, *_SHAPE, *_DTYPE, ctypes.c_uint64, _OUT)
_tensor_info = _function("tensor_info", None, ctypes.c_void_p, ctypes.POINTER(_Info))
_tensor_copyin = _function("tensor_copyin", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_tensor_copyout = _function("tensor_copyout", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_tensor_synchronize = _function("tensor_synchronize", ctypes.c_int, ctypes.c_void_p)
_to_capsule = _function("tensor_to_capsule", ctypes.c_int, ctypes.c_void_p, ctypes.c_int,
                        ctypes.POINTER(ctypes.py_object))
_from_capsule = _function("tensor_from_capsule", ctypes.c_int, ctypes.py_object, _OUT)

# DLPack's codes, by name. A number of bits and "x" lanes may follow: "float32", "float32x4".
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "complex": 5}
_WHOLE_NAMES = {
    "bool": (6, 8), "float8_e3m4": (7, 8), "float8_e4m3": (8, 8), "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8), "float8_e4m3fnuz": (11, 8), "float8_e5m2": (12, 8), "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8), "float6_e2m3fn": (15, 6), "float6_e3m2fn": (16, 6), "float4_e2m1fn": (17, 4),
}


def _code_and_bits(name):
    if name in _WHOLE_NAMES:
        return _WHOLE_NAMES[name]
    parts = re.fullmatch(r"([a-z]+)(\d+)", name)
    if parts is None or parts[1] not in _CODES or int(parts[2]) > 255:
        return None
    return _CODES[parts[1]], int(parts[2])


def _dtype(name):
    if not isinstance(name, str):
        raise TypeError(f'dtype: the name of a data type, as "float32", is needed, not {name!r}')
    one = _code_and_bits(name)
    if one is not None:
        return (*one, 1)
    stem, _, lanes = name.rpartition("x")
    of_many = _code_and_bits(stem)
    if of_many is None or not lanes.isdecimal() or int(lanes) > 65535:
        raise Error(f"{name!r} is not a data type")
    return (*of_many, int(lanes))


def _dtype_name(code, bits, lanes):
    for name, whole in _WHOLE_NAMES.items():
        if whole == (code, bits):
            return name if lanes == 1 else f"{name}x{lanes}"
    kind = {number: name for name, number in _CODES.items()}.get(code, f"code{code}_")
    return f"{kind}{bits}" if lanes == 1 else f"{kind}{bits}x{lanes}"


def _count(argument, value, low, high=(1 << 64) - 1):
    """`value` as an int, or an error that names the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{argument}: an integer is needed, not {value!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{argument}: {number} is not from {low} to {high}")
    return number


def _shape(shape):
    try:
        sizes = tuple(shape)
    except TypeError:
        raise TypeError(f"shape: a sequence of integers is needed, not {shape!r}") from None
    sizes = [_count("shape", size, -(1 << 63), (1 << 63) - 1) for size in sizes]
    return (ctypes.c_int64 * len(sizes))(*sizes), len(sizes)


def _checked(failed):
    if failed:
        raise Error(_last_error().decode(errors="replace"))


class Tensor:
    """A compact tensor that shares its memory. Made by TensorPool.empty, view and from_dlpack."""

    def __init__(self, handle):
        self._handle = handle
        self._info = _Info()
        _tensor_info(handle, self._info)

    def __del__(self):
        if getattr(self, "_handle", None) is not None and _tensor_delete is not None:
            _tensor_delete(self._handle)

    shape = property(lambda self: tuple(self._info.shape[i] for i in range(self._info.ndim)))
    dtype = property(lambda self: _dtype_name(self._info.code, self._info.bits, self._info.lanes))
    nbytes = property(lambda self: self._info.nbytes)
    address = property(lambda self: self._info.address)
    read_only = property(lambda self: bool(self._info.read_only))

    def __repr__(self):
        device_type, device_id = self.__dlpack_device__()
        return (f"<packalloc.Tensor shape={self.shape} dtype={self.dtype} device=({device_type}, {device_id})"
                f"{' read_only' if self.read_only else ''}>")

    def __array__(self, *_, **__):
        # Without this, numpy.asarray makes an array of one Python object.
        raise TypeError("a packalloc.Tensor is no array by itself: numpy.from_dlpack shares its memory")

    def view(self, shape, dtype, byte_offset=0):
        """A tensor over this one's memory from `byte_offset` on."""
        byte_offset = _count("byte_offset", byte_offset, 0)
        out = ctypes.c_void_p()
        _checked(_tensor_view(self._handle, *_shape(shape), *_dtype(dtype), byte_offset, out))
        return Tensor(out)

    def copyin(self, data):
        """Writes `data` (bytes, a NumPy array or any other contiguous buffer) to the start."""
        try:
            view = memoryview(data)
        except TypeError:
            raise TypeError(f"data: an object with bytes in it is needed, not a {type(data).__name__}") from None
        if not view.c_contiguous:
            raise ValueError("data: its bytes must lie in one piece, in row-major order")
        # ctypes takes the address of writable buffers only; of others, the bytes.
        if view.readonly or not view.nbytes:
            source = view.tobytes()
        else:
            source = (ctypes.c_char * view.nbytes).from_buffer(view)
        _checked(_tensor_copyin(self._handle, source, view.nbytes))

    def tobytes(self):
        data = ctypes.create_string_buffer(self.nbytes)
        _checked(_tensor_copyout(self._handle, data, self.nbytes))
        return data.raw

    def __dlpack_device__(self):
        return self._info.device_type, self._info.device_id

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if copy:
            raise BufferError("packalloc shares its memory; copy the result")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on device {self.__dlpack_device__()}, not on {tuple(dl_device)}")
        if self._info.device_type == _CPU and stream is not None:
            raise BufferError("a tensor of the CPU takes no stream")
        if self._info.device_type == _CUDA and stream == 0:
            raise BufferError("stream 0 is not one: 1 is the legacy default stream, 2 the per-thread one, -1 none")
        # Everything is done before the consumer gets it, whatever stream it works on; -1 asks for no waiting.
        if self._info.device_type != _CPU and stream != -1:
            _checked(_tensor_synchronize(self._handle))
        capsule = ctypes.py_object()
        if _to_capsule(self._handle, int(max_version is not None and max_version[0] >= 1), capsule):
            raise BufferError(_last_error().decode(errors="replace"))
        # Reading `value` takes a reference of its own beside the one that the library gave.
        value = capsule.value
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(value))
        return value


class TensorPool:
    """Tensors from a cache of pages over a device ("CPU", "CUDA:1", "CL:0", ...).

    At most `max_cached_bytes` are kept without being in use (None: without a limit). `dl_device` is the pair
    (device type, id) that DLPack is to be told, for allocators whose name does not say; (12, 0) is an extension device.
    """

    def __init__(self, device="CPU", page_size=4096, max_cached_bytes=None, dl_device=None):
        self._handle = None
        if not isinstance(device, str):
            raise TypeError(f'device: a name, as "CUDA:1", is needed, not {device!r}')
        page_size = _count("page_size", page_size, 0)
        limit = (1 << 64) - 1 if max_cached_bytes is None else _count("max_cached_bytes", max_cached_bytes, 0)
        dl_type, dl_id = 0, 0
        if dl_device is not None:
            if not isinstance(dl_device, (tuple, list)) or len(dl_device) != 2:
                raise TypeError(f"dl_device: a pair (device type, id) is needed, not {dl_device!r}")
            dl_type = _count("dl_device", dl_device[0], 1, (1 << 31) - 1)
            dl_id = _count("dl_device", dl_device[1], 0, (1 << 31) - 1)
        out = ctypes.c_void_p()
        _checked(_pool_new(device.encode(), page_size, limit, dl_type, dl_id, out))
        self._handle = out
        self._device = device

    def __del__(self):
        if getattr(self, "_handle", None) is not None and _pool_delete is not None:
            _pool_delete(self._handle)

    def empty(self, shape, dtype="float32"):
        """A new tensor with unspecified contents."""
        out = ctypes.c_void_p()
        _checked(_pool_empty(self._handle, *_shape(shape), *_dtype(dtype), out))
        return Tensor(out)

    def clear(self):
        """Gives back what is cached."""
        _checked(_pool_clear(self._handle))

    @property
    def used_memory(self):
        """Bytes that the pool has from its device: in use and cached, in whole pages."""
        return _pool_used_memory(self._handle)

    @property
    def statistics(self):
        """A dict: hits, misses, evictions, cached_bytes, in_use_bytes, peak_in_use_bytes."""
        stats = _Statistics()
        _pool_statistics(self._handle, stats)
        return {name: getattr(stats, name) for name, _ in stats._fields_}

    def __repr__(self):
        return f"<packalloc.TensorPool {self._device!r} used_memory={self.used_memory}>"


def from_dlpack(tensor):
    """A Tensor over the memory of any object with __dlpack__, or of a DLPack capsule."""
    if not hasattr(tensor, "__dlpack__"):
        if type(tensor).__name__ != "PyCapsule":
            raise TypeError(f"{type(tensor).__name__} has no __dlpack__, and is no DLPack capsule")
        capsule = tensor
    else:
        # On CUDA the producer makes the legacy default stream wait for its work.
        stream = {"stream": 1} if tensor.__dlpack_device__()[0] == _CUDA else {}
        try:
            capsule = tensor.__dlpack__(max_version=(1, 3), **stream)
        except TypeError:  # from before DLPack 1.0
            capsule = tensor.__dlpack__(**stream)
    out = ctypes.c_void_p()
    _checked(_from_capsule(capsule, out))
    return Tensor(out)
