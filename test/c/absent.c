/* A machine without a usable driver: absent DEVICE STATUS TEXT. The device is listed as not available with TEXT in its
 * reason, opening it is STATUS with TEXT in the error, and the CPU works all the same. */
#include <stdio.h>
#include <string.h>

#include "packalloc/c/packalloc.h"

struct wanted {
  const char* device;
  const char* text;
  int found;
};

static void visit(void* user_data, const packalloc_device* device) {
  struct wanted* wanted = user_data;
  if (strcmp(device->name, wanted->device) != 0 || device->available) return;
  if (strstr(device->reason, wanted->text) == NULL) printf("the reason is: %s\n", device->reason);
  wanted->found = strstr(device->reason, wanted->text) != NULL;
}

static int cpu_works(void) {
  packalloc_allocator* cpu = NULL;
  packalloc_buffer* buffer = NULL;
  int works = packalloc_open("CPU", &cpu) == PACKALLOC_OK && packalloc_alloc(cpu, 16, NULL, &buffer) == PACKALLOC_OK &&
              packalloc_copyin(buffer, "0123456789abcdef", 16) == PACKALLOC_OK;
  works = packalloc_free(buffer) == PACKALLOC_OK && works;
  return packalloc_close(cpu) == PACKALLOC_OK && works;
}

int main(int argc, char** argv) {
  packalloc_allocator* device = NULL;
  packalloc_status status;
  struct wanted wanted = {argv[1], argv[3], 0};
  if (argc != 4) return 2;
  status = packalloc_open(argv[1], &device);
  printf("%s: %s\n", packalloc_status_name(status), packalloc_last_error());
  if (strcmp(packalloc_status_name(status), argv[2]) != 0 || device != NULL) return 1;
  if (strstr(packalloc_last_error(), argv[3]) == NULL) return 1;
  /* A device that is not there among others is not listed. */
  if (status == PACKALLOC_UNAVAILABLE) {
    if (packalloc_list_devices(visit, &wanted) != PACKALLOC_OK || !wanted.found) return 1;
  }
  return cpu_works() ? 0 : 1;
}
