// fake_cuda: a strict CUDA driver without a GPU, for tests. It is a library with the ABI of libcuda.so.1 that runs
// every call as the real driver would and reports what the real driver might silently let pass. A test talks to the
// driver (linked, or loaded with dlopen) and steers the fake beside it:
//
//   fake_cuda_reset();                                 // a fresh driver, settings from FAKE_CUDA_* again
//   fake_cuda_set_schedule(FAKE_CUDA_LAZY);            // work runs only when a synchronization demands it
//   fake_cuda_fail("cuMemAlloc_v2", 3, 2);             // the third cuMemAlloc is out of memory
//   ... run the code under test ...
//   CHECK(fake_cuda_check_leaks() == 0);
//   CHECK_MESSAGE(fake_cuda_violation_count() == 0, fake_cuda_report());
//
// C, so that it can be reached by dlsym from any language. Every function may be called from any thread, except
// fake_cuda_reset, which needs every other user of the driver to be finished. See docs/fake_cuda.md.
#ifndef PACKALLOC_TEST_FAKE_CUDA_FAKE_CUDA_H_
#define PACKALLOC_TEST_FAKE_CUDA_FAKE_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUctx_st;
struct CUstream_st;

// When enqueued work runs. Correct programs cannot tell the difference.
typedef enum fake_cuda_schedule {
  FAKE_CUDA_LAZY = 0,    // when a synchronization demands it, nothing else: the latest a device may run it. The default
  FAKE_CUDA_EAGER = 1,   // before the call that enqueues it returns: the earliest
  FAKE_CUDA_WORKER = 2,  // on a thread of the driver's own, without a lock on memory: for ThreadSanitizer
} fake_cuda_schedule;

// How "asynchronous" copies treat pageable host memory; CUDA allows both.
typedef enum fake_cuda_pageable {
  FAKE_CUDA_PAGEABLE_LATE =
      0,  // like pinned memory: read when the copy runs, filled when it is known done. The default
  FAKE_CUDA_PAGEABLE_EARLY = 1,  // read before the call returns, filled before the call returns
} fake_cuda_pageable;

// What the driver as a whole is like. The numbers are the CUresult that it answers with.
typedef enum fake_cuda_mode {
  FAKE_CUDA_MODE_NORMAL = 0,
  FAKE_CUDA_MODE_DEINITIALIZED = 4,  // every call
  FAKE_CUDA_MODE_STUB = 34,          // cuInit: the toolkit's stub library
  FAKE_CUDA_MODE_NO_DEVICE = 100,    // cuInit
  FAKE_CUDA_MODE_MISMATCH = 803,     // cuInit: the driver and the kernel module differ
  FAKE_CUDA_MODE_GONE_AT_EXIT =
      1000,  // like the real one: an exit handler of the driver's makes every later call return 4
} fake_cuda_mode;

// Kinds of violations.
typedef enum fake_cuda_kind {
  FAKE_CUDA_OUT_OF_BOUNDS = 0,  // a range that ends behind its allocation
  FAKE_CUDA_USE_AFTER_FREE,     // memory, a stream, an event or a pool that was freed
  FAKE_CUDA_DOUBLE_FREE,        // freed, destroyed or released once too often
  FAKE_CUDA_WRONG_FREE,         // freed by the wrong function, or not where the allocation starts
  FAKE_CUDA_FOREIGN_POINTER,    // a device address that is none, host memory where device memory belongs and the other
                                // way
  FAKE_CUDA_FOREIGN_DEVICE,     // memory of a device that the current context cannot reach
  FAKE_CUDA_BAD_HANDLE,         // a context, stream, event, pool or graph that never was
  FAKE_CUDA_NO_CONTEXT,         // no current context on this thread
  FAKE_CUDA_WRONG_CONTEXT,      // another context than that of the stream, event or memory is current
  FAKE_CUDA_PENDING_WORK,       // freed with work on it that was not known done
  FAKE_CUDA_SOURCE_CHANGED,     // the host changed or freed a copy's source before the copy was known done
  FAKE_CUDA_DESTINATION_TOUCHED,  // the host changed or freed a copy's destination before the copy was known done
  FAKE_CUDA_UNORDERED,            // two streams, the same memory, at least one writes, nothing orders them
  FAKE_CUDA_CAPTURE,              // a call that is forbidden during a capture
  FAKE_CUDA_FORKED,               // a call in a forked child of the process that initialized the driver
  FAKE_CUDA_LEAK,                 // an object that was never freed
  FAKE_CUDA_MISUSE,               // anything else: not initialized, unbalanced pops, ...
  FAKE_CUDA_KIND_COUNT,
} fake_cuda_kind;

// Kinds of live objects.
typedef enum fake_cuda_object {
  FAKE_CUDA_DEVICE_MEMORY = 0,
  FAKE_CUDA_PINNED_MEMORY,
  FAKE_CUDA_REGISTERED_MEMORY,
  FAKE_CUDA_MANAGED_MEMORY,
  FAKE_CUDA_STREAM,
  FAKE_CUDA_EVENT,
  FAKE_CUDA_POOL,  // made by cuMemPoolCreate
  FAKE_CUDA_GRAPH,
  FAKE_CUDA_CONTEXT,  // made by cuCtxCreate, or a primary context that is retained
  FAKE_CUDA_OBJECT_COUNT,
} fake_cuda_object;

// --- The driver as a whole
// ---------------------------------------------------------------------------------------------

// Forgets every object, violation, count and injected failure; settings are those of the environment again. The driver
// must be initialized anew. Addresses and handles are not reused even so: what is left from before is reported.
void fake_cuda_reset(void);
// Each of these takes the value of an environment variable's place; fake_cuda_reset undoes it.
void fake_cuda_set_schedule(fake_cuda_schedule schedule);  // FAKE_CUDA_SCHEDULE=lazy|eager|worker
void fake_cuda_set_pageable(fake_cuda_pageable pageable);  // FAKE_CUDA_PAGEABLE=late|early
void fake_cuda_set_mode(fake_cuda_mode mode);              // FAKE_CUDA_MODE=4|34|100|803|exit
void fake_cuda_set_version(int version);                   // FAKE_CUDA_VERSION, e.g. 9000. Default: 13000
void fake_cuda_set_devices(int count);                     // FAKE_CUDA_DEVICES, 0 to 16, before cuInit. Default: 1
void fake_cuda_set_capacity(int device, size_t bytes);     // FAKE_CUDA_CAPACITY (all devices). Default: 1 TiB
void fake_cuda_set_pinned_capacity(size_t bytes);          // FAKE_CUDA_PINNED. Default: 1 TiB
// FAKE_CUDA_PEERS="0>1,1>0": which device can access which. Default: each can access those with a greater number.
void fake_cuda_set_peer(int device, int peer, int can_access);
// FAKE_CUDA_QUIET=1: violations are counted, not printed.
void fake_cuda_set_quiet(int quiet);

// --- Injected failures
// -------------------------------------------------------------------------------------------------

// From now on the nth call (the first is 1) of `function` ("cuMemAlloc_v2"; "*": any entry point) does nothing and
// returns `code`. nth 0: every call. A code that kills a context on a real device (226, 700, 702, 714 to 719, 721, 810,
// 911) is returned by every later call in the same context as well. FAKE_CUDA_FAIL=FUNCTION:N:CODE[,FUNCTION:N:CODE...]
void fake_cuda_fail(const char* function, uint64_t nth, int code);
void fake_cuda_clear_failures(void);  // does not bring a dead context back
uint64_t fake_cuda_failures_made(
    void);  // how many calls were failed by fake_cuda_fail since reset, dead contexts apart

// --- What was called
// ---------------------------------------------------------------------------------------------------

// The calls of one entry point ("*": of all) since reset, failed ones included.
uint64_t fake_cuda_calls(const char* function);
// The names of the entry points that were called since reset, index 0, 1, ...; NULL behind the last.
const char* fake_cuda_called(size_t index);
// Calls after the driver was gone (modes DEINITIALIZED and GONE_AT_EXIT): a good program stops at the first.
uint64_t fake_cuda_calls_when_gone(void);

// --- What was found
// ----------------------------------------------------------------------------------------------------

uint64_t fake_cuda_violation_count(void);
uint64_t fake_cuda_violations_of(fake_cuda_kind kind);
// The index-th violation's text, "use-after-free: cuMemsetD8Async: ..."; NULL behind the last. Valid until reset.
const char* fake_cuda_violation(size_t index);
// All violations, one a line; "" where there is none. Valid until the calling thread's next call of it.
const char* fake_cuda_report(void);
void fake_cuda_clear_violations(void);
// Reports every object that is alive as a leak and returns how many. FAKE_CUDA_LEAKS=all|objects|none says what is
// reported when the library is unloaded or the process ends (objects: all but contexts). Memory of a context that died
// is no leak.
uint64_t fake_cuda_check_leaks(void);
uint64_t fake_cuda_live(fake_cuda_object kind);
// Bytes of a device in use as cuMemGetInfo counts them, and bytes of pinned (not registered) memory.
size_t fake_cuda_bytes_used(int device);
size_t fake_cuda_pinned_bytes(void);

// --- Looking and computing
// ---------------------------------------------------------------------------------------------

// Copies the bytes at device addresses as they are now: no synchronization, no work is run, no bounds but the
// allocation's. Returns 0, or 1 where the range is not in one live allocation.
int fake_cuda_peek(void* dest, uint64_t address, size_t nbytes);

// A range of memory that a kernel uses; device addresses, pinned or managed memory.
typedef struct fake_cuda_range {
  uint64_t address;
  size_t nbytes;
  int writes;  // 0: it only reads
} fake_cuda_range;

typedef struct fake_cuda_kernel fake_cuda_kernel;  // a kernel as it runs
// The body of a kernel, run on the host by the schedule: it must not call the driver, and reaches memory only through
// the two functions below.
typedef void (*fake_cuda_kernel_function)(fake_cuda_kernel* kernel, void* user);

// Enqueues a kernel on `stream` (0: the legacy stream) of the current context and returns a CUresult. Its ranges
// (copied) are all that it may touch: they are checked now, order it against other work, and keep memory from being
// freed under it.
int fake_cuda_launch(struct CUstream_st* stream, fake_cuda_kernel_function function, void* user,
                     const fake_cuda_range* ranges, size_t range_count);
// Inside a kernel: reads or writes nbytes. Returns 0, or 1 (and a violation) where no range of the kernel covers them.
int fake_cuda_kernel_read(fake_cuda_kernel* kernel, void* dest, uint64_t address, size_t nbytes);
int fake_cuda_kernel_write(fake_cuda_kernel* kernel, uint64_t address, const void* src, size_t nbytes);

#ifdef __cplusplus
}
#endif

#endif  // PACKALLOC_TEST_FAKE_CUDA_FAKE_CUDA_H_
