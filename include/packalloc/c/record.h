/* An allocator as a C struct of functions: packalloc::Allocator<Buf> for C and for other languages' foreign function
 * interfaces. An allocator written in C is such a struct (packalloc_pack makes a device of it), a plugin gives one
 * (packalloc/c/plugin.h), and any allocator can be had as one (packalloc_export).
 *
 *   static packalloc_status heap_alloc(void* self, size_t nbytes, const packalloc_buffer_spec* spec,
 *                                      packalloc_raw_buffer* out) {
 *     if (spec->external_ptr != NULL || spec->zero || spec->alignment > 16) return PACKALLOC_INVALID_ARGUMENT;
 *     void* data = malloc(nbytes);
 *     if (data == NULL) return PACKALLOC_RESOURCE_EXHAUSTED;
 *     out->word[0] = (uintptr_t)data;                        // the four words are this allocator's to define
 *     return PACKALLOC_OK;
 *   }
 *   packalloc_record heap = PACKALLOC_RECORD_INIT;           // every slot empty
 *   heap.name = "HEAP"; heap.alloc = heap_alloc; heap.free = heap_free; ...
 *   packalloc_allocator* device;
 *   packalloc_status status = packalloc_pack(&heap, &device);
 *
 * The rules for a slot that is added: docs/c_api.md. */
#ifndef PACKALLOC_C_RECORD_H_
#define PACKALLOC_C_RECORD_H_

#include "packalloc/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The allocator's own handle to memory: a value, copied freely; copying it copies no memory and owns nothing. Only the
 * allocator that filled it in reads it. */
typedef struct packalloc_raw_buffer {
  uint64_t word[4];
} packalloc_raw_buffer;

/* Bytes of a file, for copy_from_disk. Valid during the call. */
typedef struct packalloc_disk_source {
  size_t struct_size;
  void* self;
  uint64_t nbytes; /* how many there are */
  /* Fills `dest`, host memory, with `nbytes` bytes from byte `offset` of the source on, by the fastest way to read the
   * file: all of them, or an error. Any thread. */
  packalloc_status (*read)(void* self, uint64_t offset, void* dest, size_t nbytes);
} packalloc_disk_source;

/* The contract of each function is that of the same member of packalloc::Allocator (packalloc/allocator.h), and
 * packalloc/testing/contract.h holds one to it. In short: any thread may call, calls on one buffer are the caller's to
 * order; operations take effect in the order issued; PACKALLOC_RESOURCE_EXHAUSTED, and only that, says that memory ran
 * out; after an error nothing has changed, and outputs are not read. Pointers given to a function are not NULL and are
 * valid during the call. `self` is the field's value. A slot that this library does not know is not called. */
typedef struct packalloc_record {
  size_t struct_size;
  void* self;
  /* Called once, when the last user of the record is gone: buffers that are alive count. May be NULL. */
  void (*release)(void* self);

  /* Facts, read once. */
  const char* name;           /* "HEAP", for messages; NULL: "C" */
  size_t min_alignment;       /* bytes, promised for spec.alignment 0; a power of two; 0: 1 */
  size_t max_alloc_bytes;     /* largest single allocation; 0: no limit */
  uint8_t address_is_pointer; /* see packalloc_device_address */
  uint8_t reserved[7];        /* 0 */

  /* Required. */

  /* Fills in *out. The spec is complete (its struct_size is the library's) and valid: alignment 0 or a power of two. */
  packalloc_status (*alloc)(void* self, size_t nbytes, const packalloc_buffer_spec* spec, packalloc_raw_buffer* out);
  /* With the nbytes and spec of its alloc. Never of a view. */
  packalloc_status (*free)(void* self, packalloc_raw_buffer buffer, size_t nbytes, const packalloc_buffer_spec* spec);
  packalloc_status (*copyin)(void* self, packalloc_raw_buffer dest, const void* src, size_t nbytes);
  packalloc_status (*copyout)(void* self, void* dest, packalloc_raw_buffer src, size_t nbytes);
  packalloc_status (*addr)(void* self, packalloc_raw_buffer buffer, packalloc_device_address* out);

  /* Optional: NULL means "this allocator cannot". */

  packalloc_status (*offset)(void* self, packalloc_raw_buffer buffer, size_t nbytes, size_t byte_offset,
                             packalloc_raw_buffer* out);
  packalloc_status (*transfer)(void* self, packalloc_raw_buffer dest, packalloc_raw_buffer src, size_t nbytes);
  packalloc_status (*copy_from_disk)(void* self, packalloc_raw_buffer dest, const packalloc_disk_source* src,
                                     size_t nbytes);
  packalloc_status (*host_ptr)(void* self, packalloc_raw_buffer buffer, void** out);
  packalloc_status (*memory_info)(void* self, packalloc_memory_info* out);
  packalloc_status (*synchronize)(void* self);
  /* The backend's own objects by name ("cuda.stream", "opencl.queue"; a plugin's begin with its backend's name in lower
   * case): PACKALLOC_NOT_FOUND for a key that it does not know. Valid as long as the record. */
  packalloc_status (*native_handle)(void* self, const char* key, void** out);
  /* A sentence for the error that this thread's last call into this record answered, or NULL. Valid until the thread's
   * next call into it. */
  const char* (*last_error)(void* self);
} packalloc_record;
#define PACKALLOC_RECORD_INIT                                                                                       \
  {                                                                                                                 \
    sizeof(packalloc_record), NULL, NULL, NULL, 0, 0, 1, {0, 0, 0, 0, 0, 0, 0}, NULL, NULL, NULL, NULL, NULL, NULL, \
        NULL, NULL, NULL, NULL, NULL, NULL, NULL                                                                    \
  }

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PACKALLOC_C_RECORD_H_ */
