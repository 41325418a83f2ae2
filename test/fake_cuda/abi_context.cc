// Contexts and the stack of each thread.
#include <algorithm>

#include "test/fake_cuda/abi.h"
#include "test/fake_cuda/context.h"

using namespace fake_cuda;

namespace {

CUresult Push(Call& call, CUcontext context) {
  Thread& thread = call.driver.ThisThread();
  if (thread.depth == Thread::kDepth) {
    return call.Wrong(FAKE_CUDA_MISUSE, CUDA_ERROR_INVALID_CONTEXT,
                      Format("%d contexts are pushed on this thread: pops are missing", thread.depth));
  }
  thread.stack[thread.depth++] = context;
  return CUDA_SUCCESS;
}

}  // namespace

FAKE_CUDA_ABI_BEGIN

// Not declared by every cuda.h: newer ones replaced it.
CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device);

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return Enter("cuDevicePrimaryCtxRetain", 0, [&](Call& call) -> CUresult {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    std::shared_ptr<Context>& primary = call.driver.primary[device];
    if (primary == nullptr) {
      primary = NewContext(call.driver, device, true);
    } else if (primary->dead != CUDA_SUCCESS) {
      return primary->dead;
    } else {
      ++primary->retains;
    }
    *context = primary->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return Enter("cuDevicePrimaryCtxRelease_v2", 0, [&](Call& call) -> CUresult {
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    std::shared_ptr<Context> primary = call.driver.primary[device];
    if (primary == nullptr) {
      return call.Wrong(FAKE_CUDA_DOUBLE_FREE, CUDA_ERROR_INVALID_CONTEXT,
                        Format("the primary context of device %d is not retained", device));
    }
    if (--primary->retains > 0) return CUDA_SUCCESS;
    call.driver.primary[device] = nullptr;
    EndContext(call, primary);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  return Enter("cuDevicePrimaryCtxGetState", 0, [&](Call& call) -> CUresult {
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    *flags = 0;
    *active = call.driver.primary[device] != nullptr;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int, CUdevice device) {
  return Enter("cuCtxCreate_v2", kUnsafe, [&](Call& call) -> CUresult {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult code = CheckDevice(call, device); code != CUDA_SUCCESS) return code;
    std::shared_ptr<Context> made = NewContext(call.driver, device, false);
    *context = made->handle;
    return Push(call, made->handle);
  });
}

CUresult cuCtxDestroy_v2(CUcontext handle) {
  return Enter("cuCtxDestroy_v2", kUnsafe, [&](Call& call) -> CUresult {
    std::shared_ptr<Context> context;
    if (CUresult code = FindContext(call, handle, &context); code != CUDA_SUCCESS) return code;
    if (context->primary) {
      return call.Wrong(FAKE_CUDA_WRONG_FREE, CUDA_ERROR_INVALID_CONTEXT, "a primary context is released");
    }
    EndContext(call, context);
    Thread& thread = call.driver.ThisThread();
    if (thread.depth > 0 && thread.stack[thread.depth - 1] == handle) --thread.depth;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return Enter("cuCtxPushCurrent_v2", 0, [&](Call& call) -> CUresult {
    std::shared_ptr<Context> context;
    if (CUresult code = FindContext(call, handle, &context); code != CUDA_SUCCESS) return code;
    return Push(call, handle);
  });
}

CUresult cuCtxPopCurrent_v2(CUcontext* handle) {
  return Enter("cuCtxPopCurrent_v2", 0, [&](Call& call) -> CUresult {
    Thread& thread = call.driver.ThisThread();
    if (thread.depth == 0) {
      return call.Wrong(FAKE_CUDA_MISUSE, CUDA_ERROR_INVALID_CONTEXT, "no context is pushed on this thread");
    }
    CUcontext popped = thread.stack[--thread.depth];
    if (handle != nullptr) *handle = popped;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* handle) {
  return Enter("cuCtxGetCurrent", 0, [&](Call& call) -> CUresult {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const Thread& thread = call.driver.ThisThread();
    *handle = thread.depth == 0 ? nullptr : thread.stack[thread.depth - 1];
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  return Enter("cuCtxSetCurrent", 0, [&](Call& call) -> CUresult {
    Thread& thread = call.driver.ThisThread();
    if (handle == nullptr) {
      thread.depth = std::max(0, thread.depth - 1);
      return CUDA_SUCCESS;
    }
    std::shared_ptr<Context> context;
    if (CUresult code = FindContext(call, handle, &context); code != CUDA_SUCCESS) return code;
    if (thread.depth == 0) return Push(call, handle);
    thread.stack[thread.depth - 1] = handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return Enter("cuCtxGetDevice", kContext, [&](Call& call) -> CUresult {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = call.context->device;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize() {
  return Enter("cuCtxSynchronize", kContext | kUnsafe, [&](Call& call) -> CUresult {
    FinishContext(call.driver, call.lock, call.context.get());
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
  return Enter("cuCtxEnablePeerAccess", kContext, [&](Call& call) -> CUresult {
    std::shared_ptr<Context> peer;
    if (CUresult code = FindContext(call, handle, &peer); code != CUDA_SUCCESS) return code;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (call.driver.settings.peers.count({call.context->device, peer->device}) == 0) {
      return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    return call.context->peers.insert(peer.get()).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  return Enter("cuCtxDisablePeerAccess", kContext, [&](Call& call) -> CUresult {
    std::shared_ptr<Context> peer;
    if (CUresult code = FindContext(call, handle, &peer); code != CUDA_SUCCESS) return code;
    return call.context->peers.erase(peer.get()) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  });
}

FAKE_CUDA_ABI_END
