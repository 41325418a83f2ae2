"""Tensors of the package shared with NumPy and PyTorch, whichever this interpreter has. 77 (skipped) with neither."""

import array
import ctypes
import gc
import os
import subprocess
import sys
import threading
import unittest

import packalloc

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None


def pool():
    return packalloc.TensorPool("CPU")


def filled(shape, dtype="float32", nbytes=None):
    tensor = pool().empty(shape, dtype)
    tensor.copyin(bytes(i % 251 for i in range(tensor.nbytes)))
    return tensor


def at_least(module, *version):
    return tuple(int(part) for part in module.__version__.split("+")[0].split(".")[:2]) >= version


class Package(unittest.TestCase):
    """What needs no other library."""

    def test_capsules(self):
        tensor = filled((4,))
        for versions, name in ({}, b"dltensor"), ({"max_version": (1, 0)}, b"dltensor_versioned"), (
            {"max_version": (0, 8)}, b"dltensor"):
            capsule = tensor.__dlpack__(**versions)
            is_valid = ctypes.pythonapi.PyCapsule_IsValid
            is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
            self.assertTrue(is_valid(capsule, name))
            back = packalloc.from_dlpack(capsule)
            self.assertEqual(back.address, tensor.address)
            self.assertTrue(is_valid(capsule, b"used_" + name))
            with self.assertRaisesRegex(packalloc.Error, "consumed before"):
                packalloc.from_dlpack(capsule)
        with self.assertRaisesRegex(TypeError, "list has no __dlpack__"):
            packalloc.from_dlpack([1, 2])
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        with self.assertRaisesRegex(packalloc.Error, "not a DLPack capsule"):
            packalloc.from_dlpack(make(1, b"other", None))

    def test_capsule_that_nobody_consumes_gives_its_memory_back(self):
        own = pool()
        capsule = own.empty((4,)).__dlpack__()
        own.clear()
        self.assertEqual(own.used_memory, 4096)
        del capsule
        gc.collect()
        own.clear()
        self.assertEqual(own.used_memory, 0)

    def test_requests_that_cannot_be_met(self):
        tensor = filled((4,))
        for wrong in {"copy": True}, {"dl_device": (2, 0)}, {"stream": 1}:
            with self.assertRaises(BufferError):
                tensor.__dlpack__(**wrong)
        tensor.__dlpack__(copy=False, dl_device=(1, 0))

    def test_errors(self):
        for call in (lambda: packalloc.TensorPool("NOWHERE"), lambda: packalloc.TensorPool("CPU", 3),
                     lambda: pool().empty((-1, 4)), lambda: pool().empty((1 << 62, 4)),
                     lambda: pool().empty((1,), "float7"), lambda: pool().empty((1,), "what"),
                     lambda: filled((4,)).view((5000,), "float32"), lambda: filled((4,)).copyin(b"x" * 17)):
            self.assertRaises(packalloc.Error, call)

    def test_errors_name_the_argument(self):
        for name, error, call in (
                ("shape", TypeError, lambda: pool().empty(4)), ("shape", TypeError, lambda: pool().empty((1.5,))),
                ("shape", ValueError, lambda: pool().empty((1 << 63,))),
                ("dtype", TypeError, lambda: pool().empty((4,), int)),
                ("byte_offset: -4 ", ValueError, lambda: filled((4,)).view((1,), "float32", -4)),
                ("byte_offset", TypeError, lambda: filled((4,)).view((1,), "float32", "4")),
                ("data", TypeError, lambda: filled((4,)).copyin(5)),
                ("data", ValueError, lambda: filled((4,)).copyin(memoryview(b"12345678")[::2])),
                ("device", TypeError, lambda: packalloc.TensorPool(1)),
                ("page_size", ValueError, lambda: packalloc.TensorPool("CPU", -1)),
                ("max_cached_bytes", TypeError, lambda: packalloc.TensorPool("CPU", max_cached_bytes="1MiB")),
                ("dl_device", TypeError, lambda: packalloc.TensorPool("CPU", dl_device=12)),
                ("dl_device", ValueError, lambda: packalloc.TensorPool("CPU", dl_device=(0, 0)))):
            with self.subTest(name), self.assertRaisesRegex(error, "^" + name):
                call()

    def test_copyin_takes_any_buffer(self):
        for data in b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), array.array("i", [0x64636261]):
            tensor = pool().empty((4,), "uint8")
            tensor.copyin(data)
            self.assertEqual(tensor.tobytes(), b"abcd")
        tensor.copyin(b"")
        self.assertEqual(tensor.tobytes(), b"abcd")
        growing = bytearray(b"efgh")
        tensor.copyin(growing)
        growing.append(1)  # the buffer is not held on to
        self.assertEqual(tensor.tobytes(), b"efgh")

    def test_a_cache_with_a_limit_and_its_statistics(self):
        own = packalloc.TensorPool("CPU", max_cached_bytes=4096)
        first, second = own.empty((4096,), "uint8"), own.empty((4096,), "uint8")
        self.assertEqual((own.statistics["in_use_bytes"], own.used_memory), (8192, 8192))
        del first, second
        gc.collect()
        tensor = own.empty((1,), "uint8")
        self.assertEqual(own.statistics, {"hits": 1, "misses": 2, "evictions": 1, "cached_bytes": 0,
                                          "in_use_bytes": 4096, "peak_in_use_bytes": 8192})
        del tensor

    def test_a_device_that_its_name_does_not_tell(self):
        with self.assertRaisesRegex(packalloc.Error, "DlDevice"):
            packalloc.TensorPool("NULL")
        tensor = packalloc.TensorPool("NULL", dl_device=(12, 3)).empty((4,))
        self.assertEqual(tensor.__dlpack_device__(), (12, 3))

    def test_what_is_printed(self):
        own = pool()
        tensor = own.empty((2, 3), "int8")
        self.assertEqual(repr(tensor), "<packalloc.Tensor shape=(2, 3) dtype=int8 device=(1, 0)>")
        self.assertEqual(repr(own), "<packalloc.TensorPool 'CPU' used_memory=4096>")

    def test_a_library_that_is_not_there_is_named(self):
        environment = dict(os.environ, PACKALLOC_PYTHON_LIBRARY="/none/lib.so")
        tried = subprocess.run([sys.executable, "-c", "import packalloc"], env=environment, capture_output=True,
                               text=True, check=False)
        self.assertRegex(tried.stderr, "ImportError: .*/none/lib.so.*PACKALLOC_PYTHON_LIBRARY")

    def test_data_types(self):
        for name in "bool", "bfloat16", "float8_e4m3fn", "int4x8", "complex64", "float4_e2m1fnx2":
            self.assertEqual(pool().empty((2,), name).dtype, name)


@unittest.skipIf(numpy is None, "this interpreter has no numpy")
class NumPy(unittest.TestCase):
    def test_to_numpy(self):
        tensor = filled((3, 4))
        array = numpy.from_dlpack(tensor)
        self.assertEqual((array.shape, array.dtype), ((3, 4), numpy.float32))
        self.assertEqual(array.ctypes.data, tensor.address)
        self.assertEqual(array.tobytes(), tensor.tobytes())

    def test_an_array_only_when_asked_for(self):
        with self.assertRaisesRegex(TypeError, "numpy.from_dlpack"):
            numpy.asarray(filled((3,)))
        tensor = pool().empty((2, 3))
        tensor.copyin(numpy.ones((2, 3), "float32"))
        self.assertEqual(tensor.tobytes(), numpy.ones(6, "float32").tobytes())
        with self.assertRaisesRegex(TypeError, "^dtype"):
            pool().empty((4,), numpy.float32)

    def test_writes_are_shared(self):
        if not at_least(numpy, 2, 1):
            self.skipTest(f"numpy {numpy.__version__} imports everything read-only")
        tensor = filled((3, 4))
        array = numpy.from_dlpack(tensor)
        array[2, 3] = 7
        self.assertEqual(tensor.tobytes()[-4:], numpy.float32(7).tobytes())

    def test_from_numpy(self):
        array = numpy.arange(12, dtype=numpy.int16).reshape(3, 4)
        tensor = packalloc.from_dlpack(array)
        self.assertEqual((tensor.shape, tensor.dtype, tensor.address), ((3, 4), "int16", array.ctypes.data))
        tensor.copyin(b"\x07\x00")
        self.assertEqual(array[0, 0], 7)
        with self.assertRaisesRegex(packalloc.Error, "contiguous"):
            packalloc.from_dlpack(array.T)
        packalloc.from_dlpack(array[:, :1][:1])  # one element: its strides mean nothing

    def test_view_at_an_offset(self):
        tensor = filled((16,), "uint8").view((5,), "uint8", 3)
        self.assertEqual(numpy.from_dlpack(tensor).tolist(), [3, 4, 5, 6, 7])
        self.assertEqual(packalloc.from_dlpack(numpy.arange(9, dtype="uint8")[4:]).tobytes(), bytes(range(4, 9)))

    def test_no_elements(self):
        for shape in (0,), (3, 0, 2):
            array = numpy.from_dlpack(pool().empty(shape, "float64"))
            self.assertEqual((array.shape, array.dtype), (shape, numpy.float64))
            self.assertEqual(packalloc.from_dlpack(numpy.empty(shape)).shape, shape)
        self.assertEqual(numpy.from_dlpack(filled(())).shape, ())

    def test_bool(self):
        tensor = pool().empty((3,), "bool")
        tensor.copyin(b"\x01\x00\x01")
        try:
            array = numpy.from_dlpack(tensor)
        except (BufferError, RuntimeError, TypeError) as refused:
            if at_least(numpy, 2, 0):
                raise
            self.skipTest(f"numpy {numpy.__version__} takes no bool: {refused}")
        self.assertEqual((array.tolist(), array.dtype), ([True, False, True], numpy.bool_))
        self.assertEqual(packalloc.from_dlpack(numpy.array([True, False])).dtype, "bool")

    def test_bfloat16_is_refused_and_nothing_lost(self):
        own = pool()
        self.assertRaises(Exception, numpy.from_dlpack, own.empty((3,), "bfloat16"))
        gc.collect()
        own.clear()
        self.assertEqual(own.used_memory, 0)

    def test_read_only(self):
        array = numpy.arange(4, dtype=numpy.float32)
        array.flags.writeable = False
        if not at_least(numpy, 2, 1):
            self.assertRaises(BufferError, packalloc.from_dlpack, array)
            self.skipTest(f"numpy {numpy.__version__} exports no read-only array")
        tensor = packalloc.from_dlpack(array)
        self.assertTrue(tensor.read_only)
        with self.assertRaisesRegex(packalloc.Error, "read-only"):
            tensor.copyin(b"x")
        again = numpy.from_dlpack(tensor)
        self.assertFalse(again.flags.writeable)
        self.assertRaises(BufferError, tensor.__dlpack__)  # the legacy capsule cannot say so

    def test_pool_gone_first(self):
        own = pool()
        tensor = own.empty((1000,), "uint8")
        tensor.copyin(b"\x2a" * 1000)
        array = numpy.from_dlpack(tensor)
        del own, tensor
        gc.collect()
        self.assertTrue((array == 42).all())

    def test_consumer_gone_first(self):
        own = pool()
        tensor = own.empty((1000,), "uint8")
        array = numpy.from_dlpack(tensor)
        del array
        tensor.copyin(b"x")
        del tensor
        gc.collect()
        own.clear()
        self.assertEqual(own.used_memory, 0)

    def test_producer_gone_first(self):
        array = numpy.full(1000, 42, dtype=numpy.uint8)
        references = sys.getrefcount(array)
        tensor = packalloc.from_dlpack(array)
        self.assertGreater(sys.getrefcount(array), references)
        view = tensor.view((10,), "uint8", 990)
        del tensor
        gc.collect()
        self.assertEqual(view.tobytes(), b"\x2a" * 10)
        del view
        gc.collect()
        self.assertEqual(sys.getrefcount(array), references)

    def test_on_another_thread(self):
        own = pool()
        seen = []

        def consume(tensor):
            seen.append(int(numpy.from_dlpack(tensor).sum()))

        for _ in range(20):
            tensor = own.empty((1000,), "uint8")
            tensor.copyin(b"\x01" * 1000)
            thread = threading.Thread(target=consume, args=(tensor,))
            del tensor
            thread.start()
            thread.join()
            del thread
        self.assertEqual(seen, [1000] * 20)
        gc.collect()
        own.clear()
        self.assertEqual(own.used_memory, 0)


@unittest.skipIf(torch is None, "this interpreter has no torch")
class PyTorch(unittest.TestCase):
    def test_to_torch(self):
        tensor = filled((3, 4))
        there = torch.from_dlpack(tensor)
        self.assertEqual((tuple(there.shape), there.dtype, there.data_ptr()), ((3, 4), torch.float32, tensor.address))
        there[2, 3] = 7
        self.assertEqual(tensor.tobytes()[-4:], b"\x00\x00\xe0\x40")

    def test_from_torch(self):
        there = torch.arange(12, dtype=torch.int64).reshape(3, 4)
        tensor = packalloc.from_dlpack(there)
        self.assertEqual((tensor.shape, tensor.dtype, tensor.address), ((3, 4), "int64", there.data_ptr()))
        tensor.copyin(b"\x07")
        self.assertEqual(there[0, 0].item(), 7)
        with self.assertRaisesRegex(packalloc.Error, "contiguous"):
            packalloc.from_dlpack(there.T)

    def test_view_at_an_offset(self):
        tensor = filled((16,), "uint8").view((5,), "uint8", 3)
        self.assertEqual(torch.from_dlpack(tensor).tolist(), [3, 4, 5, 6, 7])
        self.assertEqual(packalloc.from_dlpack(torch.arange(9, dtype=torch.uint8)[4:]).tobytes(), bytes(range(4, 9)))

    def test_no_elements(self):
        self.assertEqual(tuple(torch.from_dlpack(pool().empty((3, 0))).shape), (3, 0))
        self.assertEqual(packalloc.from_dlpack(torch.empty((0, 5))).shape, (0, 5))

    def test_bfloat16(self):
        tensor = pool().empty((2,), "bfloat16")
        tensor.copyin(b"\x80\x3f\x00\x40")  # 1 and 2
        there = torch.from_dlpack(tensor)
        self.assertEqual((there.dtype, there.tolist()), (torch.bfloat16, [1, 2]))
        back = packalloc.from_dlpack(there)
        self.assertEqual((back.dtype, back.address), ("bfloat16", tensor.address))

    def test_bool(self):
        tensor = pool().empty((3,), "bool")
        tensor.copyin(b"\x01\x00\x01")
        try:
            there = torch.from_dlpack(tensor)
            back = packalloc.from_dlpack(torch.tensor([True, False]))
        except (RuntimeError, BufferError, TypeError) as refused:
            if at_least(torch, 2, 2):
                raise
            self.skipTest(f"torch {torch.__version__} takes no bool: {refused}")
        self.assertEqual((there.dtype, there.tolist()), (torch.bool, [True, False, True]))
        self.assertEqual(back.dtype, "bool")

    def test_lifetimes(self):
        own = pool()
        tensor = own.empty((1000,), "uint8")
        tensor.copyin(b"\x2a" * 1000)
        there = torch.from_dlpack(tensor)
        del tensor
        gc.collect()
        own.clear()
        self.assertEqual(own.used_memory, 4096)  # the consumer has it
        del own
        gc.collect()
        self.assertEqual(int(there.sum()), 42000)
        own = pool()
        there = torch.from_dlpack(own.empty((8,)))
        del there
        gc.collect()
        own.clear()
        self.assertEqual(own.used_memory, 0)

    def test_on_another_thread(self):
        own = pool()
        tensor = own.empty((1000,), "uint8")
        tensor.copyin(b"\x01" * 1000)
        seen = []
        thread = threading.Thread(target=lambda t: seen.append(int(torch.from_dlpack(t).sum())), args=(tensor,))
        del tensor
        thread.start()
        thread.join()
        del thread
        self.assertEqual(seen, [1000])
        gc.collect()
        own.clear()
        self.assertEqual(own.used_memory, 0)


if __name__ == "__main__":
    for name, module in ("numpy", numpy), ("torch", torch):
        print(f"{name} {module.__version__}" if module else f"{name} is not there: its tests are skipped", flush=True)
    result = unittest.main(exit=False, verbosity=2).result
    sys.exit(1 if not result.wasSuccessful() else 77 if numpy is None and torch is None else 0)
