/* A whole backend as a plugin, in C: the heap. It links nothing of packalloc.
 *
 *   cc -std=c99 -shared -fPIC -Iinclude examples/plugin_backend.c -o libheap_plugin.so
 *   PACKALLOC_PLUGINS=./libheap_plugin.so packalloc devices
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "packalloc/c/plugin.h"

// [snippet record]
/* This backend's handle: the address in the first word. The other three are free for what a backend needs. */
static unsigned char* data_of(packalloc_raw_buffer buffer) { return (unsigned char*)(uintptr_t)buffer.word[0]; }

static packalloc_raw_buffer buffer_at(void* data) {
  packalloc_raw_buffer buffer = {{0, 0, 0, 0}};
  buffer.word[0] = (uintptr_t)data;
  return buffer;
}

/* Never called with 0 bytes, or with a spec that makes no sense. The heap has what host, cpu_access and uncached ask
 * for as far as any CPU memory has, and nolru is the caches' business. */
static packalloc_status heap_alloc(void* self, size_t nbytes, const packalloc_buffer_spec* spec,
                                   packalloc_raw_buffer* out) {
  (void)self;
  if (spec->external_ptr != NULL) { /* memory that somebody else owns */
    *out = buffer_at(spec->external_ptr);
    return PACKALLOC_OK;
  }
  /* More than was asked for, so that there is room to align, and for the block's own start before the data. */
  const size_t alignment = spec->alignment > 64 ? spec->alignment : 64;
  if (nbytes > SIZE_MAX - alignment - sizeof(void*)) return PACKALLOC_RESOURCE_EXHAUSTED;
  unsigned char* block = malloc(nbytes + alignment + sizeof(void*));
  if (block == NULL) return PACKALLOC_RESOURCE_EXHAUSTED;
  const uintptr_t first = (uintptr_t)block + sizeof(void*) + alignment - 1;
  unsigned char* data = block + (first / alignment * alignment - (uintptr_t)block);
  memcpy(data - sizeof(void*), &block, sizeof(void*));
  if (spec->zero) memset(data, 0, nbytes);
  *out = buffer_at(data);
  return PACKALLOC_OK;
}

static packalloc_status heap_free(void* self, packalloc_raw_buffer buffer, size_t nbytes,
                                  const packalloc_buffer_spec* spec) {
  void* block;
  (void)self;
  (void)nbytes;
  if (spec->external_ptr != NULL) return PACKALLOC_OK;
  memcpy(&block, data_of(buffer) - sizeof(void*), sizeof(void*));
  free(block);
  return PACKALLOC_OK;
}

static packalloc_status heap_copyin(void* self, packalloc_raw_buffer dest, const void* src, size_t nbytes) {
  (void)self;
  memcpy(data_of(dest), src, nbytes);
  return PACKALLOC_OK;
}

static packalloc_status heap_copyout(void* self, void* dest, packalloc_raw_buffer src, size_t nbytes) {
  (void)self;
  memcpy(dest, data_of(src), nbytes);
  return PACKALLOC_OK;
}

static packalloc_status heap_addr(void* self, packalloc_raw_buffer buffer, packalloc_device_address* out) {
  (void)self;
  out->value = (uintptr_t)data_of(buffer);
  out->byte_offset = 0;
  return PACKALLOC_OK;
}

/* Optional from here on; memory_info, copy_from_disk and synchronize this backend leaves empty. */
static packalloc_status heap_offset(void* self, packalloc_raw_buffer buffer, size_t nbytes, size_t byte_offset,
                                    packalloc_raw_buffer* out) {
  (void)self;
  (void)nbytes;
  *out = buffer_at(data_of(buffer) + byte_offset);
  return PACKALLOC_OK;
}

static packalloc_status heap_transfer(void* self, packalloc_raw_buffer dest, packalloc_raw_buffer src, size_t nbytes) {
  (void)self;
  memmove(data_of(dest), data_of(src), nbytes);
  return PACKALLOC_OK;
}

static packalloc_status heap_host_ptr(void* self, packalloc_raw_buffer buffer, void** out) {
  (void)self;
  *out = data_of(buffer);
  return PACKALLOC_OK;
}

static packalloc_status heap_native_handle(void* self, const char* key, void** out) {
  static int native;
  (void)self;
  if (strcmp(key, "cheap.heap") != 0) return PACKALLOC_NOT_FOUND;
  *out = &native; /* where a GPU's backend gives its context or queue */
  return PACKALLOC_OK;
}
// [/snippet record]

// [snippet backend]
static packalloc_record heap = PACKALLOC_RECORD_INIT; /* every slot empty; filled in below, before anybody opens it */

static packalloc_status open_device(void* self, const char* target, const packalloc_record** out) {
  (void)self;
  if (strcmp(target, "") != 0 && strcmp(target, "0") != 0) return PACKALLOC_NOT_FOUND;
  *out = &heap;
  return PACKALLOC_OK;
}

static packalloc_status list_devices(void* self, packalloc_device_visitor visit, void* user_data) {
  packalloc_device device = PACKALLOC_DEVICE_INIT;
  (void)self;
  device.name = "CHEAP:0";
  device.description = "the heap, from a plugin in C";
  device.available = 1;
  visit(user_data, &device);
  return PACKALLOC_OK;
}

PACKALLOC_PLUGIN_DEFINE_ABI_VERSION;

PACKALLOC_PLUGIN_EXPORT const packalloc_backend* packalloc_plugin_backend(void) {
  static packalloc_backend backend = PACKALLOC_BACKEND_INIT;
  heap.name = "CHEAP";
  heap.min_alignment = 64;
  heap.alloc = heap_alloc;
  heap.free = heap_free;
  heap.copyin = heap_copyin;
  heap.copyout = heap_copyout;
  heap.addr = heap_addr;
  heap.offset = heap_offset;
  heap.transfer = heap_transfer;
  heap.host_ptr = heap_host_ptr;
  heap.native_handle = heap_native_handle;
  backend.name = "CHEAP";
  backend.open = open_device;
  backend.list_devices = list_devices;
  return &backend;
}
// [/snippet backend]
