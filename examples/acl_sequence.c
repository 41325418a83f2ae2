/* CANN's allocator calls on a device without Ascend hardware: acl_sequence DEVICE. A program gives a stream an
 * allocator; an operator library, which knows the stream only, takes its memory from it. Status 77: no such device
 * here. */
#include <stdio.h>
#include <string.h>

#include "packalloc/c/acl.h"

#define CHECK(call)                                                                          \
  do {                                                                                       \
    const aclError code = (call);                                                            \
    if (code != ACL_SUCCESS) {                                                               \
      fprintf(stderr, "%s answered %d: %s\n", #call, (int)code, packalloc_acl_last_error()); \
      return 0;                                                                              \
    }                                                                                        \
  } while (0)

// [snippet operator]
/* What an operator library does: the output and the workspace of an operator are of the stream's allocator. */
static int run_operator(aclrtStream stream, const void* input, size_t size, void* result) {
  aclrtAllocatorDesc desc = NULL;
  aclrtAllocator allocator = NULL;
  aclrtAllocatorAllocFunc alloc = NULL;
  aclrtAllocatorFreeFunc release = NULL;
  aclrtAllocatorAllocAdviseFunc alloc_advise = NULL;
  aclrtAllocatorGetAddrFromBlockFunc address = NULL;
  CHECK(aclrtAllocatorGetByStream(stream, &desc, &allocator, &alloc, &release, &alloc_advise, &address));

  aclrtAllocatorBlock workspace = alloc(allocator, size);
  if (workspace == NULL) return 0;
  aclrtAllocatorBlock output = alloc_advise(allocator, size, address(workspace)); /* a hint, which is in use here */
  if (output == NULL) return 0;

  CHECK(aclrtMemcpy(address(workspace), size, input, size, ACL_MEMCPY_HOST_TO_DEVICE));
  CHECK(aclrtMemcpy(address(output), size, address(workspace), size, ACL_MEMCPY_DEVICE_TO_DEVICE));
  release(allocator, workspace); /* as soon as the work is issued */
  CHECK(aclrtSynchronizeStream(stream));
  CHECK(aclrtMemcpy(result, size, address(output), size, ACL_MEMCPY_DEVICE_TO_HOST));
  release(allocator, output);
  return 1;
}
// [/snippet operator]

static int run(aclrtStream stream) {
  unsigned char input[1000];
  unsigned char result[1000];
  size_t i;
  aclrtAllocatorDesc desc = NULL;
  for (i = 0; i < sizeof input; ++i) input[i] = (unsigned char)(i % 251);
  memset(result, 0, sizeof result);

  // [snippet program]
  aclrtAllocator memory = NULL;
  CHECK(packalloc_acl_create_allocator(stream, &memory));
  desc = aclrtAllocatorCreateDesc();
  CHECK(aclrtAllocatorSetObjToDesc(desc, memory));
  CHECK(aclrtAllocatorSetAllocFuncToDesc(desc, packalloc_acl_alloc));
  CHECK(aclrtAllocatorSetAllocAdviseFuncToDesc(desc, packalloc_acl_alloc_advise));
  CHECK(aclrtAllocatorSetFreeFuncToDesc(desc, packalloc_acl_free));
  CHECK(aclrtAllocatorSetGetAddrFromBlockFuncToDesc(desc, packalloc_acl_get_addr_from_block));
  CHECK(aclrtAllocatorRegister(stream, desc));
  CHECK(aclrtAllocatorDestroyDesc(desc)); /* registering has copied it */

  if (!run_operator(stream, input, sizeof input, result)) return 0;

  CHECK(aclrtSynchronizeStream(stream));
  CHECK(aclrtAllocatorUnregister(stream));
  CHECK(packalloc_acl_destroy_allocator(memory));
  // [/snippet program]

  if (memcmp(input, result, sizeof input) != 0) {
    fprintf(stderr, "the bytes did not come back\n");
    return 0;
  }
  /* The stream has no allocator any more. */
  return aclrtAllocatorGetByStream(stream, &desc, NULL, NULL, NULL, NULL, NULL) == ACL_ERROR_INVALID_PARAM;
}

int main(int argc, char** argv) {
  const char* device = argc > 1 ? argv[1] : "CPU";
  aclrtStream stream = NULL;
  if (packalloc_acl_create_stream(device, &stream) != ACL_SUCCESS) {
    printf("SKIPPED: no device %s: %s\n", device, packalloc_acl_last_error());
    return 77;
  }
  if (!run(stream)) return 1;
  if (packalloc_acl_destroy_stream(stream) != ACL_SUCCESS) return 1;
  packalloc_acl_shutdown();
  printf("%s: the operator's bytes came back\n", device);
  return 0;
}
