/* packalloc from C: a device by name with a cache, memory, a view, bytes in and out, weights from a file. */
#include <stdio.h>
#include <string.h>

#include "packalloc/c/packalloc.h"

static int write_file(const char* path, const void* bytes, size_t nbytes) {
  FILE* file = fopen(path, "wb");
  if (file == NULL) return 0;
  const size_t written = fwrite(bytes, 1, nbytes, file);
  return fclose(file) == 0 && written == nbytes;
}

// [snippet]
static int32_t show(void* user_data, uint64_t done, uint64_t total) {
  (void)user_data;
  printf("%llu of %llu bytes\n", (unsigned long long)done, (unsigned long long)total);
  return 1; /* 0 would cancel */
}

static packalloc_status run(packalloc_allocator* device, const char* weights_file) {
  float numbers[256] = {1, 2, 3};
  packalloc_buffer *buffer = NULL, *row = NULL;
  packalloc_status status = packalloc_alloc(device, sizeof numbers, NULL, &buffer);
  if (status != PACKALLOC_OK) return status;

  /* What a kernel takes is the address and, where that is a handle (a cl_mem), the offset beside it. */
  packalloc_device_address address = {0, 0};
  status = packalloc_copyin(buffer, numbers, sizeof numbers);
  if (status == PACKALLOC_OK) status = packalloc_offset(buffer, 16, 4, &row); /* 16 bytes from byte 4 on */
  if (status == PACKALLOC_OK) status = packalloc_addr(row, &address);
  if (status == PACKALLOC_OK) status = packalloc_copyout(numbers, row, 16);
  if (status == PACKALLOC_OK) printf("the view begins with %g\n", numbers[0]);

  const packalloc_load_item weights = {buffer, weights_file, 0};
  if (status == PACKALLOC_OK) status = packalloc_load(&weights, 1, show, NULL);

  if (row != NULL) packalloc_free(row); /* a view before what it is a view of */
  packalloc_free(buffer);               /* kept by the cache */
  return status;
}

int main(void) {
  const char* weights_file = "c_quick_start_weights.bin";
  char weights[1024];
  memset(weights, 7, sizeof weights);
  if (!write_file(weights_file, weights, sizeof weights)) return 1;

  packalloc_allocator* device = NULL;
  packalloc_status status = packalloc_open("CPU+lru:max_bytes=64MiB", &device);
  if (status == PACKALLOC_OK) status = run(device, weights_file);
  if (status != PACKALLOC_OK) fprintf(stderr, "%s: %s\n", packalloc_status_name(status), packalloc_last_error());

  packalloc_cache_stats stats = PACKALLOC_CACHE_STATS_INIT;
  if (packalloc_get_cache_stats(device, &stats) == PACKALLOC_OK) printf("%zu bytes cached\n", stats.cached_bytes);
  packalloc_close(device);
  remove(weights_file);
  return status == PACKALLOC_OK ? 0 : 1;
}
// [/snippet]
