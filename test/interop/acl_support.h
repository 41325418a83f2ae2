// An AscendCL runtime for tests: libpackalloc_acl's functions, with a log of the calls and faults that a test sets.
#ifndef PACKALLOC_TEST_INTEROP_ACL_SUPPORT_H_
#define PACKALLOC_TEST_INTEROP_ACL_SUPPORT_H_

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "packalloc/c/acl.h"
#include "packalloc/interop/acl.h"

namespace packalloc::testing {

// What the runtime's functions do beside their work. They have no object, so there is one at a time.
class FakeAcl {
 public:
  // The functions, over `device`'s stream().
  explicit FakeAcl(const char* device = "CPU") {
    current_ = this;
    REQUIRE_MESSAGE(packalloc_acl_create_stream(device, &stream_) == ACL_SUCCESS, packalloc_acl_last_error());
  }
  FakeAcl(const FakeAcl&) = delete;
  FakeAcl& operator=(const FakeAcl&) = delete;
  ~FakeAcl() {
    CHECK(packalloc_acl_destroy_stream(stream_) == ACL_SUCCESS);
    CHECK(descs_ == 0);
    current_ = nullptr;
  }

  void* stream() const { return stream_; }
  AclFunctions functions() const {
    AclFunctions acl;
    acl.aclrtAllocatorCreateDesc = []() -> void* {
      if (Fault("CreateDesc") != 0) return nullptr;
      ++current_->descs_;
      return aclrtAllocatorCreateDesc();
    };
    acl.aclrtAllocatorDestroyDesc = [](void* desc) {
      --current_->descs_;
      return aclrtAllocatorDestroyDesc(desc);
    };
    acl.aclrtAllocatorSetObjToDesc = [](void* desc, void* object) {
      const int fault = Fault("SetObj");
      return fault != 0 ? fault : aclrtAllocatorSetObjToDesc(desc, object);
    };
    acl.aclrtAllocatorSetAllocFuncToDesc = [](void* desc, AclCallbacks::Alloc func) {
      const int fault = Fault("SetAlloc");
      return fault != 0 ? fault : aclrtAllocatorSetAllocFuncToDesc(desc, func);
    };
    acl.aclrtAllocatorSetAllocAdviseFuncToDesc = [](void* desc, AclCallbacks::AllocAdvise func) {
      const int fault = Fault("SetAllocAdvise");
      return fault != 0 ? fault : aclrtAllocatorSetAllocAdviseFuncToDesc(desc, func);
    };
    acl.aclrtAllocatorSetFreeFuncToDesc = [](void* desc, AclCallbacks::Free func) {
      const int fault = Fault("SetFree");
      return fault != 0 ? fault : aclrtAllocatorSetFreeFuncToDesc(desc, func);
    };
    acl.aclrtAllocatorSetGetAddrFromBlockFuncToDesc = [](void* desc, AclCallbacks::GetAddrFromBlock func) {
      const int fault = Fault("SetGetAddr");
      return fault != 0 ? fault : aclrtAllocatorSetGetAddrFromBlockFuncToDesc(desc, func);
    };
    acl.aclrtAllocatorRegister = [](void* stream, void* desc) {
      const int fault = Fault("Register");
      return fault != 0 ? fault : aclrtAllocatorRegister(stream, desc);
    };
    acl.aclrtAllocatorUnregister = [](void* stream) {
      const int fault = Fault("Unregister");
      return fault != 0 ? fault : aclrtAllocatorUnregister(stream);
    };
    acl.aclrtAllocatorGetByStream = &aclrtAllocatorGetByStream;
    acl.aclrtSynchronizeStream = [](void* stream) {
      if (current_->on_synchronize) current_->on_synchronize();
      const int fault = Fault("SynchronizeStream");
      return fault != 0 ? fault : aclrtSynchronizeStream(stream);
    };
    acl.aclrtStreamQuery = [](void*, int* status) {
      if (current_->on_query) current_->on_query();
      *status = current_->busy ? 1 : 0;
      return Fault("StreamQuery");
    };
    acl.aclrtMemcpy = [](void* dest, std::size_t most, const void* src, std::size_t n, int kind) {
      const int fault = Fault("Memcpy");
      return fault != 0 ? fault : aclrtMemcpy(dest, most, src, n, kind);
    };
    return acl;
  }

  // By the names above: the aclError that the function answers, without doing anything.
  std::map<std::string, int> faults;
  bool busy = true;                      // what aclrtStreamQuery says
  std::function<void()> on_synchronize;  // runs at the start of aclrtSynchronizeStream
  std::function<void()> on_query;        // and of aclrtStreamQuery

  std::vector<std::string> TakeLog() {
    const std::lock_guard lock(mutex_);
    return std::move(log_);
  }
  void Log(const std::string& what) {
    const std::lock_guard lock(mutex_);
    log_.push_back(what);
  }

 private:
  static int Fault(const char* function) {
    current_->Log(function);
    const auto found = current_->faults.find(function);
    return found == current_->faults.end() ? 0 : found->second;
  }

  inline static FakeAcl* current_ = nullptr;
  void* stream_ = nullptr;
  int descs_ = 0;
  std::mutex mutex_;
  std::vector<std::string> log_;
};

// What is registered with a stream; all null where nothing is.
inline AclCallbacks RegisteredWith(void* stream) {
  AclCallbacks callbacks;
  void* desc = nullptr;
  if (aclrtAllocatorGetByStream(stream, &desc, &callbacks.object, &callbacks.alloc, &callbacks.free,
                                &callbacks.alloc_advise, &callbacks.get_addr_from_block) != ACL_SUCCESS) {
    return {};
  }
  return callbacks;
}

inline bool Says(const absl::Status& status, const std::string& text) {
  const bool found = std::string(status.message()).find(text) != std::string::npos;
  if (!found) MESSAGE(status.ToString());
  return found;
}

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_INTEROP_ACL_SUPPORT_H_
