"""Objects that Python makes with tvm_ffi, from an allocator installed after the import, or before it.

    tvm_ffi_test.py install_after_import | install_before_import
"""

import ctypes
import gc
import os
import sys
import threading

ours = ctypes.CDLL(os.environ["FOR_PYTHON_LIBRARY"])
for name in ("Install", "LeakReport", "Uninstall"):
    getattr(ours, name).restype = ctypes.c_char_p
for name in ("Allocations", "Live", "FromMalloc"):
    getattr(ours, name).restype = ctypes.c_uint64


def expect(condition, what):
    if not condition:
        sys.exit(f"{what}\n{ours.LeakReport().decode()}")


def install(library=""):
    message = ours.Install(library.encode())
    expect(message == b"", message)


def work(tvm_ffi):
    """Containers, strings, functions and errors, all dropped at the end."""
    texts = [f"a string that is long enough, {i}" for i in range(200)]
    array = tvm_ffi.Array(texts)
    table = tvm_ffi.Map({text: i for i, text in enumerate(texts)})
    nested = tvm_ffi.Array([array, table, array])
    expect(list(nested[0]) == texts and nested[1][texts[7]] == 7, "containers hold what they were given")
    add = tvm_ffi.convert(lambda a, b: a + b)
    expect(add(1, 2) == 3, "a function of Python's, called through TVM-FFI")
    expect(add(tvm_ffi.Array([1]), tvm_ffi.Array([2]))[1] == 2, "objects pass through a function")

    def fail():
        raise ValueError("expected")

    try:
        tvm_ffi.convert(fail)()
    except ValueError as error:
        expect("expected" in str(error), "the error is the one that was raised")
    else:
        sys.exit("no error came through")


def drop_all():
    for _ in range(3):
        gc.collect()


def main(order):
    if order == "install_before_import":
        # The import sets an allocator of its own, in place of ours: installed again, ours is used.
        install(os.environ["TVM_FFI_LIBRARY"])
        live = ours.Probe()
        before = ours.Allocations()
        import tvm_ffi

        work(tvm_ffi)
        drop_all()
        expect(ours.Uninstall().startswith(b"FAILED_PRECONDITION"), "the import's allocator lies on ours")
        if live == 1:
            made_by_import = ours.Allocations() - before
            print(f"{made_by_import} objects were made before the import set its own allocator")
    else:
        import tvm_ffi
    work(tvm_ffi)  # what is made once for all is made
    drop_all()
    install()
    live = ours.Probe()
    expect(live in (0, 1), "the probe finds out")
    print(f"tvm_ffi {tvm_ffi.__version__}: the hook is {'live' if live else 'dormant'}")
    if os.environ["TVM_FFI_MUST_BE_LIVE"] == "1":
        expect(live == 1, "this release is to use the allocator")

    work(tvm_ffi)
    drop_all()
    resting = ours.Live()
    before = ours.Allocations()
    for _ in range(5):
        work(tvm_ffi)
    threads = [threading.Thread(target=work, args=(tvm_ffi,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drop_all()
    made = ours.Allocations() - before
    expect((made > 0) == (live == 1), f"{made} objects were made")
    expect(ours.Live() == resting, f"{ours.Live()} objects live, {resting} at rest")
    expect(ours.FromMalloc() == 0, "no object came from malloc")
    print(f"{made} objects made and dropped, {resting} at rest:\n{ours.LeakReport().decode()}", end="")

    late = tvm_ffi.Array(["dropped after the allocator's time"] * 3)
    expect(ours.Uninstall() == b"", "uninstalled")
    del late
    drop_all()
    expect(ours.Live() == resting, "the late object was dropped")
    work(tvm_ffi)  # with the import's allocator again
    install()
    main.at_exit = tvm_ffi.Array(["dropped by the interpreter's end"] * 3)


main(sys.argv[1])
