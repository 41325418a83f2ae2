/* Objects in plain C: memory from the allocator that is set, references taken and dropped, one delete_space each. */
#include <stdint.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

static int deleted;

static void Delete(void* self, int flags) {
  if ((flags & kTVMFFIObjectDeleterFlagBitMaskWeak) != 0) {
    TVMFFIObjectAllocHeader* header = (TVMFFIObjectAllocHeader*)self - 1;
    ++deleted;
    header->delete_space(self);
  }
}

/* Makes `count` objects, drops them and returns how many were deleted; -1 for a failure, and -2 for a deletion too
 * early. */
int RoundTrip(int count) {
  TVMFFICustomAllocator* allocator = TVMFFIGetCustomAllocator();
  int i;
  deleted = 0;
  for (i = 0; i < count; ++i) {
    TVMFFIObject* object = allocator->allocate(sizeof(TVMFFIObject) + 24, 8, kTVMFFIObject, allocator->context);
    if (object == NULL) return -1;
    memset(object, 0, sizeof(TVMFFIObject) + 24);
    object->combined_ref_count = ((uint64_t)1 << 32) | 1; /* one strong, one weak */
    object->type_index = kTVMFFIObject;
    object->deleter = &Delete;
    if (TVMFFIObjectIncRef(object) != 0 || TVMFFIObjectDecRef(object) != 0) return -1;
    if (deleted != i) return -2;
    if (TVMFFIObjectDecRef(object) != 0) return -1;
  }
  return deleted;
}
