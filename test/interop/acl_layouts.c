/* What a program compiled against packalloc/c/acl.h relies on beside the symbols: the signatures, which this file must
 * compile with, the codes and the kinds. */
#include <stdio.h>

#include "packalloc/c/acl.h"

/* CANN's own signatures, with its types written out. */
void* (*const create_desc)(void) = aclrtAllocatorCreateDesc;
int (*const destroy_desc)(void*) = aclrtAllocatorDestroyDesc;
int (*const set_obj)(void*, void*) = aclrtAllocatorSetObjToDesc;
int (*const set_alloc)(void*, void* (*)(void*, size_t)) = aclrtAllocatorSetAllocFuncToDesc;
int (*const set_advise)(void*, void* (*)(void*, size_t, void*)) = aclrtAllocatorSetAllocAdviseFuncToDesc;
int (*const set_free)(void*, void (*)(void*, void*)) = aclrtAllocatorSetFreeFuncToDesc;
int (*const set_get_addr)(void*, void* (*)(void*)) = aclrtAllocatorSetGetAddrFromBlockFuncToDesc;
int (*const register_allocator)(void*, void*) = aclrtAllocatorRegister;
int (*const unregister)(void*) = aclrtAllocatorUnregister;
int (*const get_by_stream)(void*, void**, void**, void* (**)(void*, size_t), void (**)(void*, void*),
                           void* (**)(void*, size_t, void*), void* (**)(void*)) = aclrtAllocatorGetByStream;
int (*const synchronize)(void*) = aclrtSynchronizeStream;
int (*const query)(void*, int*) = aclrtStreamQuery;
int (*const copy)(void*, size_t, const void*, size_t, int) = aclrtMemcpy;

int main(void) {
  printf("aclError: %zu bytes, codes %d %d %d %d %d\n", sizeof(aclError), ACL_SUCCESS, ACL_ERROR_INVALID_PARAM,
         ACL_ERROR_BAD_ALLOC, ACL_ERROR_RT_MEMORY_ALLOCATION, ACL_ERROR_INTERNAL_ERROR);
  printf("aclrtMemcpyKind: %zu bytes, kinds %d %d %d %d %d %d %d %d\n", sizeof(aclrtMemcpyKind),
         ACL_MEMCPY_HOST_TO_HOST, ACL_MEMCPY_HOST_TO_DEVICE, ACL_MEMCPY_DEVICE_TO_HOST, ACL_MEMCPY_DEVICE_TO_DEVICE,
         ACL_MEMCPY_DEFAULT, ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE, ACL_MEMCPY_INNER_DEVICE_TO_DEVICE,
         ACL_MEMCPY_INTER_DEVICE_TO_DEVICE);
  printf("aclrtStreamStatus: %zu bytes, %d %d\n", sizeof(aclrtStreamStatus), ACL_STREAM_STATUS_COMPLETE,
         ACL_STREAM_STATUS_NOT_READY);
  return 0;
}
