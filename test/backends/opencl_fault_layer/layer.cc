// The layer's library: see fault_layer.h.
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#include <CL/cl.h>
#include <CL/cl_icd.h>
#include <CL/cl_layer.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "test/backends/opencl_fault_layer/fault_layer.h"

namespace packalloc::testing {
namespace {

enum class Kind { kContext, kQueue, kMemory };

class Control final : public FaultLayerControl {
 public:
  std::vector<std::string> entry_points() const override {
    std::lock_guard lock(mu_);
    std::vector<std::string> names;
    for (const auto& [name, calls] : calls_) names.push_back(name);
    return names;
  }
  std::size_t calls() const override {
    std::lock_guard lock(mu_);
    return all_calls_;
  }
  std::size_t calls(const std::string& entry_point) const override {
    std::lock_guard lock(mu_);
    const auto it = calls_.find(entry_point);
    return it == calls_.end() ? 0 : it->second;
  }
  void Fail(const std::string& entry_point, std::size_t first, cl_int code, std::size_t count) override {
    std::lock_guard lock(mu_);
    failing_ = entry_point;
    to_pass_ = first - 1;
    to_fail_ = count;
    code_ = code;
  }
  std::size_t failures() const override {
    std::lock_guard lock(mu_);
    return failures_;
  }
  void set_capacity(std::size_t nbytes) override {
    std::lock_guard lock(mu_);
    capacity_ = nbytes;
  }
  std::size_t live_objects() const override {
    std::lock_guard lock(mu_);
    return live_.size();
  }
  std::size_t live_buffers() const override {
    std::lock_guard lock(mu_);
    return static_cast<std::size_t>(
        std::count_if(live_.begin(), live_.end(), [](const auto& o) { return o.second.kind == Kind::kMemory; }));
  }
  std::string Describe() const override {
    std::lock_guard lock(mu_);
    std::ostringstream out;
    for (const auto& [handle, object] : live_) {
      out << object.made_by << ' ' << handle << ": " << object.references << " references\n";
    }
    return out.str();
  }
  std::size_t mappings() const override {
    std::lock_guard lock(mu_);
    return mappings_;
  }
  std::size_t bad_releases() const override {
    std::lock_guard lock(mu_);
    return bad_releases_;
  }
  void Reset() override {
    std::lock_guard lock(mu_);
    for (auto& [name, calls] : calls_) calls = 0;
    all_calls_ = failures_ = to_fail_ = 0;
    capacity_ = kForEver;
  }

  void AddEntryPoint(const char* name) { calls_[name] = 0; }

  // The code to fail this call with, or CL_SUCCESS to let it through.
  cl_int Enter(const char* name) {
    std::lock_guard lock(mu_);
    ++calls_[name];
    ++all_calls_;
    if (to_fail_ == 0 || (!failing_.empty() && failing_ != name)) return CL_SUCCESS;
    if (to_pass_ > 0) {
      --to_pass_;
      return CL_SUCCESS;
    }
    if (to_fail_ != kForEver) --to_fail_;
    ++failures_;
    return code_;
  }
  void Made(Kind kind, void* handle, const char* name, std::size_t nbytes = 0) {
    if (handle == nullptr) return;
    std::lock_guard lock(mu_);
    live_[handle] = {kind, name, 1, nbytes};
    used_ += nbytes;
  }
  void Retained(void* handle) {
    std::lock_guard lock(mu_);
    const auto it = live_.find(handle);
    if (it != live_.end()) ++it->second.references;
  }
  // To be asked before the driver gets the call: after it the handle's value may be another object's.
  bool Releasing(void* handle) {
    std::lock_guard lock(mu_);
    const auto it = live_.find(handle);
    if (it == live_.end()) {
      ++bad_releases_;
      return false;
    }
    if (--it->second.references == 0) {
      used_ -= it->second.nbytes;
      live_.erase(it);
    }
    return true;
  }
  void Mapped() {
    std::lock_guard lock(mu_);
    ++mappings_;
  }
  void Unmapped() {
    std::lock_guard lock(mu_);
    --mappings_;
  }
  bool HasRoomFor(std::size_t nbytes) {
    std::lock_guard lock(mu_);
    return nbytes <= capacity_ && used_ <= capacity_ - nbytes;
  }

 private:
  struct Object {
    Kind kind;
    std::string made_by;
    std::size_t references;
    std::size_t nbytes;
  };

  mutable std::mutex mu_;
  std::map<std::string, std::size_t> calls_;
  std::size_t all_calls_ = 0;
  std::string failing_;
  std::size_t to_pass_ = 0;
  std::size_t to_fail_ = 0;
  cl_int code_ = CL_SUCCESS;
  std::size_t failures_ = 0;
  std::size_t capacity_ = kForEver;
  std::size_t used_ = 0;
  std::map<void*, Object> live_;
  std::size_t mappings_ = 0;
  std::size_t bad_releases_ = 0;
};

Control& TheControl() {
  static Control& control = *new Control;
  return control;
}

const cl_icd_dispatch* below = nullptr;
cl_icd_dispatch ours = {};

template <typename... Args>
auto LastOf(Args... args) {
  return std::get<sizeof...(Args) - 1>(std::make_tuple(args...));
}

// One wrapper for every entry point: a call that fails does nothing, one that goes through is recorded by `After`.
template <auto Member>
struct Wrap;

template <typename R, typename... Args, R (CL_API_CALL* cl_icd_dispatch::*Member)(Args...)>
struct Wrap<Member> {
  static inline const char* name = "";
  static inline void (*before)(Args...) = nullptr;
  static inline void (*after)(R, Args...) = nullptr;
  static inline cl_int (*refuse)(Args...) = nullptr;

  static R CL_API_CALL Call(Args... args) {
    cl_int code = TheControl().Enter(name);
    if (code == CL_SUCCESS && refuse != nullptr) code = refuse(args...);
    if (code != CL_SUCCESS) {
      if constexpr (std::is_same_v<R, cl_int>) {
        return code;
      } else {
        if (cl_int* to = LastOf(args...)) *to = code;
        return R{};
      }
    }
    if (before != nullptr) before(args...);
    R result = (below->*Member)(args...);
    if (after != nullptr) after(result, args...);
    return result;
  }
};

#define WATCH(entry_point)                                         \
  do {                                                             \
    Wrap<& cl_icd_dispatch::entry_point>::name = #entry_point;     \
    ours.entry_point = &Wrap<&cl_icd_dispatch::entry_point>::Call; \
    TheControl().AddEntryPoint(#entry_point);                      \
  } while (false)
#define WATCH_MAKE(entry_point, kind) \
  WATCH(entry_point);                 \
  Wrap<& cl_icd_dispatch::entry_point>::after = [](auto made, auto...) { TheControl().Made(kind, made, #entry_point); }
#define WATCH_RETAIN(entry_point)                                              \
  WATCH(entry_point);                                                          \
  Wrap<& cl_icd_dispatch::entry_point>::after = [](cl_int code, auto handle) { \
    if (code == CL_SUCCESS) TheControl().Retained(handle);                     \
  }
#define WATCH_RELEASE(entry_point) \
  WATCH(entry_point);              \
  Wrap<& cl_icd_dispatch::entry_point>::before = [](auto handle) { TheControl().Releasing(handle); }

void WatchAll() {
  WATCH(clGetPlatformIDs);
  WATCH(clGetPlatformInfo);
  WATCH(clGetDeviceIDs);
  WATCH(clGetDeviceInfo);
  WATCH_MAKE(clCreateContext, Kind::kContext);
  WATCH_RETAIN(clRetainContext);
  WATCH_RELEASE(clReleaseContext);
  WATCH(clGetContextInfo);
  WATCH_MAKE(clCreateCommandQueue, Kind::kQueue);
  WATCH_RETAIN(clRetainCommandQueue);
  WATCH_RELEASE(clReleaseCommandQueue);
  WATCH(clGetCommandQueueInfo);
  WATCH(clCreateBuffer);
  Wrap<& cl_icd_dispatch::clCreateBuffer>::refuse = [](cl_context, cl_mem_flags, std::size_t nbytes, void*, cl_int*) {
    return TheControl().HasRoomFor(nbytes) ? CL_SUCCESS : CL_MEM_OBJECT_ALLOCATION_FAILURE;
  };
  Wrap<& cl_icd_dispatch::clCreateBuffer>::after = [](cl_mem made, cl_context, cl_mem_flags, std::size_t nbytes, void*,
                                                      cl_int*) {
    TheControl().Made(Kind::kMemory, made, "clCreateBuffer", nbytes);
  };
  WATCH_MAKE(clCreateSubBuffer, Kind::kMemory);
  WATCH_RETAIN(clRetainMemObject);
  WATCH_RELEASE(clReleaseMemObject);
  WATCH(clGetMemObjectInfo);
  WATCH(clEnqueueReadBuffer);
  WATCH(clEnqueueWriteBuffer);
  WATCH(clEnqueueCopyBuffer);
  WATCH(clEnqueueFillBuffer);
  WATCH(clEnqueueUnmapMemObject);
  Wrap<& cl_icd_dispatch::clEnqueueUnmapMemObject>::after = [](cl_int code, auto...) {
    if (code == CL_SUCCESS) TheControl().Unmapped();
  };
  WATCH(clEnqueueMigrateMemObjects);
  WATCH(clEnqueueBarrierWithWaitList);
  WATCH(clEnqueueMapBuffer);
  Wrap<& cl_icd_dispatch::clEnqueueMapBuffer>::after = [](void* mapped, auto...) {
    if (mapped != nullptr) TheControl().Mapped();
  };
  WATCH(clFlush);
  WATCH(clFinish);
}

}  // namespace
}  // namespace packalloc::testing

extern "C" {

CL_API_ENTRY cl_int CL_API_CALL clGetLayerInfo(cl_layer_info name, std::size_t size, void* value, std::size_t* needed) {
  if (name != CL_LAYER_API_VERSION) return CL_INVALID_VALUE;
  const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
  if (value != nullptr && size < sizeof version) return CL_INVALID_VALUE;
  if (value != nullptr) std::memcpy(value, &version, sizeof version);
  if (needed != nullptr) *needed = sizeof version;
  return CL_SUCCESS;
}

CL_API_ENTRY cl_int CL_API_CALL clInitLayer(cl_uint, const cl_icd_dispatch* target, cl_uint* entries,
                                            const cl_icd_dispatch** layer) {
  packalloc::testing::below = target;
  packalloc::testing::WatchAll();
  *layer = &packalloc::testing::ours;
  *entries = sizeof packalloc::testing::ours / sizeof(void*);
  return CL_SUCCESS;
}

packalloc::testing::FaultLayerControl* packalloc_fault_layer_control() { return &packalloc::testing::TheControl(); }

}  // extern "C"
