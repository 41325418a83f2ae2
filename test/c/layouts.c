/* Prints the size of every struct of the C ABI, and the place and size of every field: what test/c/abi.txt records. */
#include <stddef.h>
#include <stdio.h>

#include "packalloc/c/packalloc.h"
#include "packalloc/c/plugin.h"

#define STRUCT(type) printf("%s: %zu bytes\n", #type, sizeof(type))
#define FIELD(type, field) printf("  %s: %zu at %zu\n", #field, sizeof(((type*)NULL)->field), offsetof(type, field))

int main(void) {
  printf("plugin ABI version %d\n", PACKALLOC_PLUGIN_ABI_VERSION);
  printf("statuses: %d to %d, %zu bytes\n", PACKALLOC_OK, PACKALLOC_UNAUTHENTICATED, sizeof(packalloc_status));

  STRUCT(packalloc_buffer_spec);
  FIELD(packalloc_buffer_spec, struct_size);
  FIELD(packalloc_buffer_spec, alignment);
  FIELD(packalloc_buffer_spec, external_ptr);
  FIELD(packalloc_buffer_spec, uncached);
  FIELD(packalloc_buffer_spec, cpu_access);
  FIELD(packalloc_buffer_spec, host);
  FIELD(packalloc_buffer_spec, nolru);
  FIELD(packalloc_buffer_spec, zero);
  FIELD(packalloc_buffer_spec, reserved);

  STRUCT(packalloc_device_address);
  FIELD(packalloc_device_address, value);
  FIELD(packalloc_device_address, byte_offset);

  STRUCT(packalloc_memory_info);
  FIELD(packalloc_memory_info, free_bytes);
  FIELD(packalloc_memory_info, total_bytes);

  STRUCT(packalloc_device);
  FIELD(packalloc_device, struct_size);
  FIELD(packalloc_device, name);
  FIELD(packalloc_device, description);
  FIELD(packalloc_device, reason);
  FIELD(packalloc_device, memory);
  FIELD(packalloc_device, available);
  FIELD(packalloc_device, has_memory);
  FIELD(packalloc_device, reserved);

  STRUCT(packalloc_raw_buffer);
  FIELD(packalloc_raw_buffer, word);

  STRUCT(packalloc_disk_source);
  FIELD(packalloc_disk_source, struct_size);
  FIELD(packalloc_disk_source, self);
  FIELD(packalloc_disk_source, nbytes);
  FIELD(packalloc_disk_source, read);

  STRUCT(packalloc_record);
  FIELD(packalloc_record, struct_size);
  FIELD(packalloc_record, self);
  FIELD(packalloc_record, release);
  FIELD(packalloc_record, name);
  FIELD(packalloc_record, min_alignment);
  FIELD(packalloc_record, max_alloc_bytes);
  FIELD(packalloc_record, address_is_pointer);
  FIELD(packalloc_record, reserved);
  FIELD(packalloc_record, alloc);
  FIELD(packalloc_record, free);
  FIELD(packalloc_record, copyin);
  FIELD(packalloc_record, copyout);
  FIELD(packalloc_record, addr);
  FIELD(packalloc_record, offset);
  FIELD(packalloc_record, transfer);
  FIELD(packalloc_record, copy_from_disk);
  FIELD(packalloc_record, host_ptr);
  FIELD(packalloc_record, memory_info);
  FIELD(packalloc_record, synchronize);
  FIELD(packalloc_record, native_handle);
  FIELD(packalloc_record, last_error);

  STRUCT(packalloc_backend);
  FIELD(packalloc_backend, struct_size);
  FIELD(packalloc_backend, self);
  FIELD(packalloc_backend, name);
  FIELD(packalloc_backend, default_rank);
  FIELD(packalloc_backend, reserved);
  FIELD(packalloc_backend, open);
  FIELD(packalloc_backend, list_devices);
  FIELD(packalloc_backend, last_error);

  STRUCT(packalloc_cuda_options);
  FIELD(packalloc_cuda_options, struct_size);
  FIELD(packalloc_cuda_options, context);
  FIELD(packalloc_cuda_options, stream);
  FIELD(packalloc_cuda_options, has_stream);
  FIELD(packalloc_cuda_options, allocation);
  FIELD(packalloc_cuda_options, reserved);

  STRUCT(packalloc_opencl_options);
  FIELD(packalloc_opencl_options, struct_size);
  FIELD(packalloc_opencl_options, context);
  FIELD(packalloc_opencl_options, queue);

  STRUCT(packalloc_traits);
  FIELD(packalloc_traits, struct_size);
  FIELD(packalloc_traits, name);
  FIELD(packalloc_traits, min_alignment);
  FIELD(packalloc_traits, max_alloc_bytes);
  FIELD(packalloc_traits, address_is_pointer);
  FIELD(packalloc_traits, supports_offset);
  FIELD(packalloc_traits, supports_transfer);
  FIELD(packalloc_traits, supports_copy_from_disk);
  FIELD(packalloc_traits, supports_host_ptr);
  FIELD(packalloc_traits, reserved);

  STRUCT(packalloc_cache_stats);
  FIELD(packalloc_cache_stats, struct_size);
  FIELD(packalloc_cache_stats, hits);
  FIELD(packalloc_cache_stats, misses);
  FIELD(packalloc_cache_stats, evictions);
  FIELD(packalloc_cache_stats, flushes);
  FIELD(packalloc_cache_stats, failed_frees);
  FIELD(packalloc_cache_stats, cached_bytes);
  FIELD(packalloc_cache_stats, cached_buffers);
  FIELD(packalloc_cache_stats, in_use_bytes);
  FIELD(packalloc_cache_stats, in_use_buffers);
  FIELD(packalloc_cache_stats, pinned_cached_bytes);
  FIELD(packalloc_cache_stats, pinned_in_use_bytes);
  FIELD(packalloc_cache_stats, peak_in_use_bytes);
  FIELD(packalloc_cache_stats, peak_held_bytes);

  STRUCT(packalloc_load_item);
  FIELD(packalloc_load_item, dest);
  FIELD(packalloc_load_item, path);
  FIELD(packalloc_load_item, offset);
  return 0;
}
