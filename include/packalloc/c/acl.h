/* libpackalloc_acl: the allocator functions of Ascend's AscendCL runtime (CANN), in its own ABI, over any device of
 * packalloc. A program or a framework that is written to them runs without Ascend hardware: it links libpackalloc_acl
 * in the place of libascendcl. C99; every call may be made from any thread. In the shape of CANN's call sequence:
 *
 *   aclrtStream stream = NULL;
 *   aclrtAllocator memory = NULL;
 *   packalloc_acl_create_stream("CL+lru", &stream);                    // CANN: aclrtSetDevice, aclrtCreateStream
 *   packalloc_acl_create_allocator(stream, &memory);                   // or an allocator of the program's own
 *   aclrtAllocatorDesc desc = aclrtAllocatorCreateDesc();
 *   aclrtAllocatorSetObjToDesc(desc, memory);
 *   aclrtAllocatorSetAllocFuncToDesc(desc, packalloc_acl_alloc);       // and the other three
 *   aclrtAllocatorRegister(stream, desc);
 *   aclrtAllocatorDestroyDesc(desc);
 *   ... a consumer of the stream calls aclrtAllocatorGetByStream and allocates ...
 *   aclrtSynchronizeStream(stream);
 *   aclrtAllocatorUnregister(stream);
 *   packalloc_acl_destroy_allocator(memory);
 *   packalloc_acl_destroy_stream(stream);
 *
 * What answers an aclError: 0 is success, 100000 a parameter that is NULL, unknown or of no device, 200000 that host
 * memory ran out, 207001 that device memory did, 500000 a failure of the device. packalloc_acl_last_error has the
 * sentence. After an error nothing has changed, and a handle that was to be given is NULL. No exception leaves a call.
 * Handles are looked up, never followed, but for those of streams and allocators that are the program's own. Usable in
 * a forked child as far as the devices are: CPU and caches over it are, CUDA and CL are not. */
#ifndef PACKALLOC_C_ACL_H_
#define PACKALLOC_C_ACL_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PACKALLOC_ACL_API __attribute__((visibility("default")))
#else
#define PACKALLOC_ACL_API
#endif

/* ---- CANN's, left out where its own headers have been included before ---- */

#if !defined(INC_EXTERNAL_ACL_ACL_BASE_H_) && !defined(INC_EXTERNAL_ACL_ACL_RT_H_) && \
    !defined(INC_EXTERNAL_ACL_ACL_RT_ALLOCATOR_H_)

typedef int aclError;
typedef void* aclrtStream;
typedef void* aclrtAllocatorDesc;
typedef void* aclrtAllocator;
typedef void* aclrtAllocatorBlock;
typedef void* aclrtAllocatorAddr;
typedef void* (*aclrtAllocatorAllocFunc)(aclrtAllocator allocator, size_t size);
typedef void (*aclrtAllocatorFreeFunc)(aclrtAllocator allocator, aclrtAllocatorBlock block);
typedef void* (*aclrtAllocatorAllocAdviseFunc)(aclrtAllocator allocator, size_t size, aclrtAllocatorAddr addr);
typedef void* (*aclrtAllocatorGetAddrFromBlockFunc)(aclrtAllocatorBlock block);

enum {
  ACL_SUCCESS = 0,
  ACL_ERROR_INVALID_PARAM = 100000,
  ACL_ERROR_BAD_ALLOC = 200000,
  ACL_ERROR_RT_MEMORY_ALLOCATION = 207001,
  ACL_ERROR_INTERNAL_ERROR = 500000
};

/* An enum in CANN: passed alike. */
typedef int aclrtMemcpyKind;
enum {
  ACL_MEMCPY_HOST_TO_HOST,
  ACL_MEMCPY_HOST_TO_DEVICE,
  ACL_MEMCPY_DEVICE_TO_HOST,
  ACL_MEMCPY_DEVICE_TO_DEVICE,
  ACL_MEMCPY_DEFAULT, /* what the addresses say: an address in no block is the host's */
  ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE,
  ACL_MEMCPY_INNER_DEVICE_TO_DEVICE,
  ACL_MEMCPY_INTER_DEVICE_TO_DEVICE
};

/* NULL where memory ran out. The caller destroys it. */
PACKALLOC_ACL_API aclrtAllocatorDesc aclrtAllocatorCreateDesc(void);
/* Streams with which it was registered keep what they copied of it. */
PACKALLOC_ACL_API aclError aclrtAllocatorDestroyDesc(aclrtAllocatorDesc allocator_desc);

/* The object that the functions get, and the functions. NULL is an error. */
PACKALLOC_ACL_API aclError aclrtAllocatorSetObjToDesc(aclrtAllocatorDesc allocator_desc, aclrtAllocator allocator);
PACKALLOC_ACL_API aclError aclrtAllocatorSetAllocFuncToDesc(aclrtAllocatorDesc allocator_desc,
                                                            aclrtAllocatorAllocFunc func);
PACKALLOC_ACL_API aclError aclrtAllocatorSetAllocAdviseFuncToDesc(aclrtAllocatorDesc allocator_desc,
                                                                  aclrtAllocatorAllocAdviseFunc func);
PACKALLOC_ACL_API aclError aclrtAllocatorSetFreeFuncToDesc(aclrtAllocatorDesc allocator_desc,
                                                           aclrtAllocatorFreeFunc func);
PACKALLOC_ACL_API aclError aclrtAllocatorSetGetAddrFromBlockFuncToDesc(aclrtAllocatorDesc allocator_desc,
                                                                       aclrtAllocatorGetAddrFromBlockFunc func);

/* Copies the descriptor: the stream's allocator from now on, in the place of the one before. Needs the object and the
 * functions but for the advice. Any stream but NULL, also one that nobody created here. The object must live until the
 * stream is unregistered. */
PACKALLOC_ACL_API aclError aclrtAllocatorRegister(aclrtStream stream, aclrtAllocatorDesc allocator_desc);
/* A stream without an allocator is a success. */
PACKALLOC_ACL_API aclError aclrtAllocatorUnregister(aclrtStream stream);
/* What is registered; an error for a stream without an allocator. All outputs but the descriptor may be NULL. The
 * descriptor may have been destroyed since: it only tells registrations apart. */
PACKALLOC_ACL_API aclError aclrtAllocatorGetByStream(aclrtStream stream, aclrtAllocatorDesc* allocator_desc,
                                                     aclrtAllocator* allocator, aclrtAllocatorAllocFunc* alloc_func,
                                                     aclrtAllocatorFreeFunc* free_func,
                                                     aclrtAllocatorAllocAdviseFunc* alloc_advise_func,
                                                     aclrtAllocatorGetAddrFromBlockFunc* get_addr_from_block_func);

/* Waits for the device of a stream that was created or adopted here. */
PACKALLOC_ACL_API aclError aclrtSynchronizeStream(aclrtStream stream);

/* An enum in CANN: of its size. */
typedef int aclrtStreamStatus;
enum { ACL_STREAM_STATUS_COMPLETE = 0, ACL_STREAM_STATUS_NOT_READY = 1 };

/* Whether all work is done. There is no asking the devices of packalloc, so this waits as aclrtSynchronizeStream does
 * and then says ACL_STREAM_STATUS_COMPLETE, never ACL_STREAM_STATUS_NOT_READY. */
PACKALLOC_ACL_API aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status);

/* Copies `count` bytes, done on return. Device addresses are those in live blocks of packalloc_acl_create_allocator, on
 * whichever device (where addresses are handles, a block's own address only); others are ACL_ERROR_INVALID_PARAM, as
 * are a device address where the kind says host, and more bytes than `dest_max` or than the block has. */
PACKALLOC_ACL_API aclError aclrtMemcpy(void* dst, size_t dest_max, const void* src, size_t count, aclrtMemcpyKind kind);

#endif /* no headers of CANN */

/* ---- packalloc's: devices, streams, allocators ---- */

/* A stream of a device by name (packalloc/registry.h): "CPU", "CUDA:1", "CL+lru"; NULL: the one that packalloc::Default
 * chooses. Its memory and its copies are those of the allocator of that name. */
PACKALLOC_ACL_API aclError packalloc_acl_create_stream(const char* device, aclrtStream* stream);

/* Makes a stream that the program has, and keeps alive, one of a device: on CUDA a CUstream, on CL a cl_command_queue,
 * in whose context memory then lies and with whose work copies are ordered; elsewhere any pointer, which only names it.
 * Not NULL and not known already. */
PACKALLOC_ACL_API aclError packalloc_acl_adopt_stream(const char* device, aclrtStream stream);

/* Ends either; an adopted stream itself stays the program's. Waits for its device and unregisters its allocator first.
 * Allocators of the stream stay good. */
PACKALLOC_ACL_API aclError packalloc_acl_destroy_stream(aclrtStream stream);

/* An allocator object over the stream's device, for aclrtAllocatorSetObjToDesc together with the four functions below.
 */
PACKALLOC_ACL_API aclError packalloc_acl_create_allocator(aclrtStream stream, aclrtAllocator* allocator);
/* Waits for its device and gives back all its memory, live blocks too. A call with the object is then as of an unknown
 * one. Where the device refuses to free some, the error says why, and another call tries those again. */
PACKALLOC_ACL_API aclError packalloc_acl_destroy_allocator(aclrtAllocator allocator);

/* The functions of such an object, by CANN's contract: alloc answers NULL where memory ran out (or the object is
 * unknown), the suggested address is taken where a block is kept there, what is no live block is not freed, and the
 * address of what is no block is NULL. On OpenCL the address is the block's cl_mem. */
PACKALLOC_ACL_API void* packalloc_acl_alloc(aclrtAllocator allocator, size_t size);
PACKALLOC_ACL_API void* packalloc_acl_alloc_advise(aclrtAllocator allocator, size_t size, aclrtAllocatorAddr addr);
PACKALLOC_ACL_API void packalloc_acl_free(aclrtAllocator allocator, aclrtAllocatorBlock block);
PACKALLOC_ACL_API void* packalloc_acl_get_addr_from_block(aclrtAllocatorBlock block);

/* Whether one may add to an address of the allocator's blocks: 1 where it is a pointer, 0 where it is a handle (on
 * OpenCL a cl_mem). For an allocator that is none of packalloc_acl_create_allocator, or NULL, of the stream's device; 0
 * where that is not known either. */
PACKALLOC_ACL_API int packalloc_acl_address_is_pointer(aclrtStream stream, aclrtAllocator allocator);

/* Forgets the devices that were opened, so that those which no stream or allocator uses are released now. For tests and
 * leak reports: nothing has to call it. */
PACKALLOC_ACL_API void packalloc_acl_shutdown(void);

/* Why this thread's last call that failed did, "" where none has; UTF-8, valid until the next that fails. */
PACKALLOC_ACL_API const char* packalloc_acl_last_error(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* PACKALLOC_C_ACL_H_ */
