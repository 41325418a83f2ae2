/* packalloc for C, and for every language that calls C: device memory of any backend, by name. C99; every call may be
 * made from any thread.
 *
 *   packalloc_allocator* device = NULL;
 *   packalloc_buffer* buffer = NULL;
 *   float numbers[256] = {1, 2, 3};
 *   if (packalloc_open("CPU+lru:max_bytes=64MiB", &device) != PACKALLOC_OK) return fail(packalloc_last_error());
 *   if (packalloc_alloc(device, sizeof numbers, NULL, &buffer) != PACKALLOC_OK) return fail(packalloc_last_error());
 *   if (packalloc_copyin(buffer, numbers, sizeof numbers) != PACKALLOC_OK) return fail(packalloc_last_error());
 *   packalloc_device_address address;
 *   if (packalloc_addr(buffer, &address) != PACKALLOC_OK) return fail(packalloc_last_error());
 *   launch_kernel(address.value, address.byte_offset);
 *   packalloc_free(buffer);
 *   packalloc_close(device);
 *
 * Errors: every call but the three of texts answers a packalloc_status (packalloc/c/types.h), and packalloc_last_error
 * has the sentence. No exception leaves a call: one of a backend's or a user's function is PACKALLOC_INTERNAL (of
 * std::bad_alloc, PACKALLOC_RESOURCE_EXHAUSTED). After an error nothing has changed, and an output that is a handle or
 * a pointer is NULL. Handles are numbers in the guise of pointers: none is ever followed, so one that is NULL, freed,
 * of the other kind or made up is PACKALLOC_INVALID_ARGUMENT, as is a NULL where something is needed. A handle's number
 * is not used again for another object. */
#ifndef PACKALLOC_C_PACKALLOC_H_
#define PACKALLOC_C_PACKALLOC_H_

#include "packalloc/c/record.h"
#include "packalloc/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PACKALLOC_API __attribute__((visibility("default")))
#else
#define PACKALLOC_API
#endif

typedef struct packalloc_allocator packalloc_allocator;
typedef struct packalloc_buffer packalloc_buffer;

/* ---- texts ---- */

/* "0.1.0". Static. */
PACKALLOC_API const char* packalloc_version(void);

/* What went wrong in this thread's last call that failed, "" where none has; at most 2047 bytes of UTF-8. A call that
 * succeeds leaves it, so cleaning up first does no harm. Valid until the thread's next call that fails. */
PACKALLOC_API const char* packalloc_last_error(void);

/* "RESOURCE_EXHAUSTED"; "UNKNOWN_STATUS" for a number that is none. Static. */
PACKALLOC_API const char* packalloc_status_name(packalloc_status status);

/* ---- devices ---- */

/* Calls `visit` for every device of every backend, and for each backend without one, with the reason. */
PACKALLOC_API packalloc_status packalloc_list_devices(packalloc_device_visitor visit, void* user_data);

/* Adds the backend of the plugin at `path`, a shared library. Errors: packalloc::LoadPlugin (packalloc/plugin.h). */
PACKALLOC_API packalloc_status packalloc_load_plugin(const char* path);

/* The allocator of a device name, BACKEND[:TARGET][+LAYER[:KEY=VALUE,...]]...; as packalloc::Open
 * (packalloc/registry.h), whose errors it has. The same name gives the same allocator, through a handle of its own. The
 * caller closes it. */
PACKALLOC_API packalloc_status packalloc_open(const char* name, packalloc_allocator** out);

/* PACKALLOC_DEVICE in the environment, else the first that works of CUDA, CL, CPU; as packalloc::Default. */
PACKALLOC_API packalloc_status packalloc_open_default(packalloc_allocator** out);

/* What a caller has of CUDA already; see CudaOptions (packalloc/backends/cuda.h). The context and the stream must live
 * until the allocator is closed and its last buffer freed. */
typedef struct packalloc_cuda_options {
  size_t struct_size;
  void* context;       /* CUcontext; NULL: the device's primary context */
  void* stream;        /* CUstream, of that context; NULL, with has_stream: the legacy default stream */
  uint8_t has_stream;  /* 0: the allocator makes a stream (stream must then be NULL) */
  uint8_t allocation;  /* 0: cuMemAlloc; 1: cuMemAllocAsync */
  uint8_t reserved[6]; /* 0 */
} packalloc_cuda_options;
#define PACKALLOC_CUDA_OPTIONS_INIT                                        \
  {                                                                        \
    sizeof(packalloc_cuda_options), NULL, NULL, 0, 0, { 0, 0, 0, 0, 0, 0 } \
  }

/* A new allocator over a CUDA context and stream that the caller has, ordered with its work. `name` as in
 * packalloc_open: "CUDA:1+lru". PACKALLOC_UNAVAILABLE, with the reason, where this build or machine has no CUDA. */
PACKALLOC_API packalloc_status packalloc_open_cuda(const char* name, const packalloc_cuda_options* options,
                                                   packalloc_allocator** out);

/* What a caller has of OpenCL already; see OpenClOptions (packalloc/backends/opencl.h). Both are retained. */
typedef struct packalloc_opencl_options {
  size_t struct_size;
  void* context; /* cl_context; NULL: the queue's */
  void* queue;   /* cl_command_queue; NULL: the allocator makes one in the context */
} packalloc_opencl_options;
#define PACKALLOC_OPENCL_OPTIONS_INIT \
  { sizeof(packalloc_opencl_options), NULL, NULL }

/* A new allocator over an OpenCL context and queue that the caller has. `name` as in packalloc_open: "CL+lru".
 * PACKALLOC_UNAVAILABLE, with the reason, where this build or machine has no OpenCL. */
PACKALLOC_API packalloc_status packalloc_open_opencl(const char* name, const packalloc_opencl_options* options,
                                                     packalloc_allocator** out);

/* A new allocator over an allocator written in C, whose struct is copied. On success its `release` becomes the
 * library's to call, once, when the last user is gone. PACKALLOC_INVALID_ARGUMENT for a required function that is NULL,
 * a bad struct_size or a min_alignment that is not a power of two. */
PACKALLOC_API packalloc_status packalloc_pack(const packalloc_record* record, packalloc_allocator** out);

/* Any allocator as a C struct: *out, whose struct_size the caller has set, is filled in up to that size. The caller
 * calls out->release(out->self) when done; the struct's `name` is valid until then. Its buffers are its own: they are
 * not packalloc_buffers. */
PACKALLOC_API packalloc_status packalloc_export(packalloc_allocator* allocator, packalloc_record* out);

/* A new allocator: `allocator` under layers as a device name writes them, "lru:max_bytes=1MiB+checked"; a "+"
 * may stand before the first, and "" adds none. */
PACKALLOC_API packalloc_status packalloc_add_layers(packalloc_allocator* allocator, const char* layers,
                                                    packalloc_allocator** out);

/* Gives the handle up. Buffers stay good: the allocator lives until the last of them is freed. */
PACKALLOC_API packalloc_status packalloc_close(packalloc_allocator* allocator);

/* Forgets the allocators that packalloc_open shares, for tests and leak reports; as packalloc::Shutdown. */
PACKALLOC_API packalloc_status packalloc_shutdown(void);

/* ---- an allocator ---- */

typedef struct packalloc_traits {
  size_t struct_size;
  const char* name;           /* "CUDA:1"; valid until the handle is closed */
  size_t min_alignment;       /* bytes, of buffers with spec.alignment 0 */
  size_t max_alloc_bytes;     /* largest single allocation */
  uint8_t address_is_pointer; /* see packalloc_device_address */
  uint8_t supports_offset;
  uint8_t supports_transfer;
  uint8_t supports_copy_from_disk;
  uint8_t supports_host_ptr;
  uint8_t reserved[3]; /* 0 */
} packalloc_traits;
#define PACKALLOC_TRAITS_INIT                                        \
  {                                                                  \
    sizeof(packalloc_traits), NULL, 0, 0, 0, 0, 0, 0, 0, { 0, 0, 0 } \
  }

/* In: traits->struct_size. */
PACKALLOC_API packalloc_status packalloc_get_traits(packalloc_allocator* allocator, packalloc_traits* traits);

/* PACKALLOC_UNIMPLEMENTED where the backend cannot tell. */
PACKALLOC_API packalloc_status packalloc_get_memory_info(packalloc_allocator* allocator, packalloc_memory_info* info);

/* Waits until all that was issued on the allocator is done. */
PACKALLOC_API packalloc_status packalloc_synchronize(packalloc_allocator* allocator);

/* The backend's own objects, through any layers: "cuda.context", "cuda.stream", "opencl.platform", "opencl.device",
 * "opencl.context", "opencl.queue", and those of a plugin or an allocator in C (its native_handle). Valid as long as
 * the allocator; not the caller's to release. PACKALLOC_NOT_FOUND for a key that the allocator does not have. */
PACKALLOC_API packalloc_status packalloc_native_handle(packalloc_allocator* allocator, const char* key, void** out);

/* Of the outermost cache; as packalloc::LruStats (packalloc/layers/lru.h). */
typedef struct packalloc_cache_stats {
  size_t struct_size;
  uint64_t hits;
  uint64_t misses;
  uint64_t evictions;    /* buffers released because of max_bytes */
  uint64_t flushes;      /* times that buffers were released because memory was exhausted */
  uint64_t failed_frees; /* releases of cached buffers that failed */
  size_t cached_bytes;
  size_t cached_buffers;
  size_t in_use_bytes;
  size_t in_use_buffers;
  size_t pinned_cached_bytes;
  size_t pinned_in_use_bytes;
  size_t peak_in_use_bytes;
  size_t peak_held_bytes;
} packalloc_cache_stats;
#define PACKALLOC_CACHE_STATS_INIT \
  { sizeof(packalloc_cache_stats), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* In: stats->struct_size. PACKALLOC_UNIMPLEMENTED where the allocator has no cache. */
PACKALLOC_API packalloc_status packalloc_get_cache_stats(packalloc_allocator* allocator, packalloc_cache_stats* stats);

/* Releases cached buffers until at most `keep_bytes` are kept. PACKALLOC_UNIMPLEMENTED where the allocator has no
 * cache; else the first release that failed (everything else is released all the same). */
PACKALLOC_API packalloc_status packalloc_trim(packalloc_allocator* allocator, size_t keep_bytes);

/* ---- buffers ---- */

/* `nbytes` bytes, uninitialised unless spec->zero; spec NULL: the default. The caller frees the buffer.
 * PACKALLOC_RESOURCE_EXHAUSTED where memory ran out, PACKALLOC_INVALID_ARGUMENT for a spec that cannot be had. */
PACKALLOC_API packalloc_status packalloc_alloc(packalloc_allocator* allocator, size_t nbytes,
                                               const packalloc_buffer_spec* spec, packalloc_buffer** out);

/* A view of `nbytes` bytes from `byte_offset` of `buffer` (of a view: relative to it) on. The caller frees it, which
 * releases the view only. PACKALLOC_OUT_OF_RANGE outside the buffer, PACKALLOC_UNIMPLEMENTED where the backend has no
 * views. */
PACKALLOC_API packalloc_status packalloc_offset(packalloc_buffer* buffer, size_t nbytes, size_t byte_offset,
                                                packalloc_buffer** out);

/* Gives a buffer or a view back. PACKALLOC_FAILED_PRECONDITION while views of it are alive or a call on it is under
 * way; else what the backend's free answers. After an error the buffer is as it was. */
PACKALLOC_API packalloc_status packalloc_free(packalloc_buffer* buffer);

/* Bytes as asked for. */
PACKALLOC_API packalloc_status packalloc_nbytes(packalloc_buffer* buffer, size_t* out);

/* Host to device, `nbytes` bytes to the start of `dest`. `src` may be reused on return. PACKALLOC_OUT_OF_RANGE, and
 * nothing written, for more than the buffer has. `src` may be NULL where nbytes is 0. */
PACKALLOC_API packalloc_status packalloc_copyin(packalloc_buffer* dest, const void* src, size_t nbytes);

/* Device to host, `nbytes` bytes from the start of `src`. Complete on return. Errors as packalloc_copyin. */
PACKALLOC_API packalloc_status packalloc_copyout(void* dest, packalloc_buffer* src, size_t nbytes);

/* What the backend's kernels take; valid as long as the buffer. {0, 0} for a buffer of 0 bytes. */
PACKALLOC_API packalloc_status packalloc_addr(packalloc_buffer* buffer, packalloc_device_address* out);

/* Where the CPU may read and write the buffer (after packalloc_synchronize). NULL for a buffer of 0 bytes.
 * PACKALLOC_FAILED_PRECONDITION for one that is not host memory, PACKALLOC_UNIMPLEMENTED where the backend has none. */
PACKALLOC_API packalloc_status packalloc_host_ptr(packalloc_buffer* buffer, void** out);

/* Copies `nbytes` between the starts of two buffers of one transfer domain, as if by memmove, on the device.
 * PACKALLOC_INVALID_ARGUMENT for buffers of two domains (packalloc_copy copies between any two). */
PACKALLOC_API packalloc_status packalloc_transfer(packalloc_buffer* dest, packalloc_buffer* src, size_t nbytes);

/* Copies all of `src` to all of `dest`, on whatever devices they are, as if by memmove, by the best way that both know.
 * `path` may be NULL; else *path says which way ("transfer", "direct copyin", ...; static text).
 * PACKALLOC_INVALID_ARGUMENT where the sizes differ. */
PACKALLOC_API packalloc_status packalloc_copy(packalloc_buffer* dest, packalloc_buffer* src, const char** path);

/* A buffer and the bytes of a file that fill all of it. Of fixed size: an array of these is loaded at once. */
typedef struct packalloc_load_item {
  packalloc_buffer* dest;
  const char* path;
  uint64_t offset; /* of the first byte in the file */
} packalloc_load_item;

/* Called on the caller's thread with growing `done`, at least once per 64 MiB and, last, with done == total (bytes).
 * 0 cancels. */
typedef int32_t (*packalloc_progress)(void* user_data, uint64_t done, uint64_t total);

/* Fills `count` buffers from files, by the fastest way there is, without draining the pipeline between them; as
 * packalloc::CopyAll. `progress` may be NULL. Everything is checked before the first byte is written.
 * PACKALLOC_NOT_FOUND for a file that is not there, PACKALLOC_OUT_OF_RANGE for one that is too short,
 * PACKALLOC_CANCELLED where progress answered 0; after the last two the buffers' bytes are undefined.
 * So are those of a buffer that several items name: the order in which items are read is not promised. */
PACKALLOC_API packalloc_status packalloc_load(const packalloc_load_item* items, size_t count,
                                              packalloc_progress progress, void* user_data);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PACKALLOC_C_PACKALLOC_H_ */
