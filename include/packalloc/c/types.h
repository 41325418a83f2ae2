/* The values of the C ABI: what the calls of packalloc/c/packalloc.h and the functions of packalloc/c/record.h give and
 * take. C99. Every type is of fixed size or a struct that says its own size.
 *
 *   packalloc_buffer_spec spec = PACKALLOC_BUFFER_SPEC_INIT;
 *   spec.host = 1;                                              // pinned memory, on CUDA
 *   spec.alignment = 256;
 *   packalloc_status status = packalloc_alloc(device, 4096, &spec, &buffer);
 *   if (status == PACKALLOC_RESOURCE_EXHAUSTED) make_room();
 *   else if (status != PACKALLOC_OK) fprintf(stderr, "%s\n", packalloc_last_error());
 *
 * A struct that begins with `struct_size` may grow: fields are only ever added at its end. The caller sets struct_size
 * to sizeof of the struct that it was compiled with (PACKALLOC_..._INIT does), and each side reads and writes no more
 * than that. Fields that the caller's struct does not have are as if 0; fields that the library does not know must be 0
 * where they would ask for something (PACKALLOC_INVALID_ARGUMENT), and are set to 0 where the library answers. A
 * struct_size smaller than the first version's, or above 65536, is PACKALLOC_INVALID_ARGUMENT. */
#ifndef PACKALLOC_C_TYPES_H_
#define PACKALLOC_C_TYPES_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call answers: one of the values below. An int32_t, not the enum, so that its size is the same for every
 * compiler and a value that this version does not know is still a value. The numbers are those of absl::StatusCode. */
typedef int32_t packalloc_status;
enum packalloc_status_code {
  PACKALLOC_OK = 0,
  PACKALLOC_CANCELLED = 1,
  PACKALLOC_UNKNOWN = 2,
  PACKALLOC_INVALID_ARGUMENT = 3, /* a bad handle, spec, size, name or pointer */
  PACKALLOC_DEADLINE_EXCEEDED = 4,
  PACKALLOC_NOT_FOUND = 5, /* no such backend, device, layer or file */
  PACKALLOC_ALREADY_EXISTS = 6,
  PACKALLOC_PERMISSION_DENIED = 7,
  PACKALLOC_RESOURCE_EXHAUSTED = 8,  /* memory ran out: the only one that a cache answers by releasing */
  PACKALLOC_FAILED_PRECONDITION = 9, /* the state forbids the call */
  PACKALLOC_ABORTED = 10,
  PACKALLOC_OUT_OF_RANGE = 11,  /* bytes outside a buffer or file */
  PACKALLOC_UNIMPLEMENTED = 12, /* this backend cannot */
  PACKALLOC_INTERNAL = 13,      /* a backend broke its promise, or an exception left a function of one */
  PACKALLOC_UNAVAILABLE = 14,   /* this machine cannot: no driver, no device */
  PACKALLOC_DATA_LOSS = 15,
  PACKALLOC_UNAUTHENTICATED = 16
};

/* What kind of memory a buffer is to be; as packalloc::BufferSpec. Any value but 0 is true. A field is honoured or
 * answered with PACKALLOC_INVALID_ARGUMENT, never ignored. */
typedef struct packalloc_buffer_spec {
  size_t struct_size;
  size_t alignment;    /* bytes; 0: the backend's default, else a power of two */
  void* external_ptr;  /* wrap this memory, which the caller keeps: never allocated, freed or cached; NULL: no */
  uint8_t uncached;    /* memory that the CPU does not cache */
  uint8_t cpu_access;  /* device memory that the CPU can read and write */
  uint8_t host;        /* host memory (pinned, on CUDA) */
  uint8_t nolru;       /* never kept by a cache on free */
  uint8_t zero;        /* comes zero-filled */
  uint8_t reserved[3]; /* 0 */
} packalloc_buffer_spec;
#define PACKALLOC_BUFFER_SPEC_INIT                                     \
  {                                                                    \
    sizeof(packalloc_buffer_spec), 0, NULL, 0, 0, 0, 0, 0, { 0, 0, 0 } \
  }

/* Where a kernel finds a buffer. Where the allocator's addresses are pointers (packalloc_traits), `value` is the
 * pointer with every offset folded in and `byte_offset` is 0. Elsewhere `value` is an opaque handle (a cl_mem) on which
 * nobody does arithmetic, and `byte_offset` is the distance from its start. Of fixed size. */
typedef struct packalloc_device_address {
  uintptr_t value;
  size_t byte_offset;
} packalloc_device_address;

/* Device memory in bytes, as the driver tells it. Of fixed size. */
typedef struct packalloc_memory_info {
  size_t free_bytes;
  size_t total_bytes;
} packalloc_memory_info;

/* A device of this machine, or the reason why a backend has none. Texts are UTF-8, never NULL when the library gives
 * them, and valid during the call that gives them. */
typedef struct packalloc_device {
  size_t struct_size;
  const char* name;        /* as packalloc_open takes it */
  const char* description; /* the device's own name, as its driver tells it */
  const char* reason;      /* why not, where not available */
  packalloc_memory_info memory;
  uint8_t available;
  uint8_t has_memory;  /* whether `memory` is known */
  uint8_t reserved[6]; /* 0 */
} packalloc_device;
#define PACKALLOC_DEVICE_INIT                                                      \
  {                                                                                \
    sizeof(packalloc_device), NULL, NULL, NULL, {0, 0}, 0, 0, { 0, 0, 0, 0, 0, 0 } \
  }

/* Called once for each device, on the caller's thread. */
typedef void (*packalloc_device_visitor)(void* user_data, const packalloc_device* device);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PACKALLOC_C_TYPES_H_ */
