// The library behind the Python package `packalloc`: tensor pools and DLPack capsules as C functions, loaded with
// ctypes. Knows no Python.h: the few functions of the interpreter that it needs are found in the process that loads it,
// so one build serves every Python 3. Functions return 0, or 1 with last_error() set; none throws. Those that take or
// give a capsule are called with the interpreter lock held (ctypes.PyDLL).
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor_pool.h"

namespace packalloc {
namespace {

struct Interpreter {
  using Capsule = void;  // a PyObject
  Capsule* (*New)(void* pointer, const char* name, void (*destructor)(Capsule*)) = nullptr;
  int (*IsValid)(Capsule*, const char* name) = nullptr;
  void* (*GetPointer)(Capsule*, const char* name) = nullptr;
  int (*SetName)(Capsule*, const char* name) = nullptr;
  bool complete = false;

  static const Interpreter& Here() {
    static const Interpreter here = [] {
      Interpreter found;
      const auto find = [](auto& function, const char* name) {
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
        return function != nullptr;
      };
      found.complete = find(found.New, "PyCapsule_New") && find(found.IsValid, "PyCapsule_IsValid") &&
                       find(found.GetPointer, "PyCapsule_GetPointer") && find(found.SetName, "PyCapsule_SetName");
      return found;
    }();
    return here;
  }
};

template <typename Managed>
struct Names;
template <>
struct Names<DLManagedTensor> {
  static constexpr const char* kFresh = "dltensor";
  static constexpr const char* kUsed = "used_dltensor";
};
template <>
struct Names<DLManagedTensorVersioned> {
  static constexpr const char* kFresh = "dltensor_versioned";
  static constexpr const char* kUsed = "used_dltensor_versioned";
};

std::string& LastError() {
  thread_local std::string message;
  return message;
}

int Fail(const absl::Status& status) {
  LastError() = std::string(status.message());
  return 1;
}

// `work` returns a status; what it throws becomes one.
template <typename Work>
int Guarded(Work&& work) noexcept {
  try {
    const absl::Status done = std::forward<Work>(work)();
    return done.ok() ? 0 : Fail(done);
  } catch (const std::exception& e) {
    return Fail(absl::InternalError(e.what()));
  } catch (...) {
    return Fail(absl::InternalError("an exception of an unknown type"));
  }
}

// A capsule that nobody consumed gives its tensor back.
template <typename Managed>
void DestroyCapsule(void* capsule) {
  const Interpreter& python = Interpreter::Here();
  if (python.IsValid(capsule, Names<Managed>::kFresh) == 0) return;
  DlpackDeleter()(static_cast<Managed*>(python.GetPointer(capsule, Names<Managed>::kFresh)));
}

template <typename Pointer>
absl::Status ToCapsule(absl::StatusOr<Pointer> exported, void** capsule) {
  if (!exported.ok()) return exported.status();
  using Managed = typename Pointer::element_type;
  *capsule = Interpreter::Here().New(exported->get(), Names<Managed>::kFresh, &DestroyCapsule<Managed>);
  if (*capsule == nullptr) return absl::InternalError("PyCapsule_New failed");
  static_cast<void>(exported->release());
  return absl::OkStatus();
}

template <typename Managed>
absl::Status FromCapsule(void* capsule, Tensor** out) {
  const Interpreter& python = Interpreter::Here();
  auto holder = std::make_unique<Tensor>();
  absl::StatusOr<Tensor> tensor = FromDlpack(static_cast<Managed*>(python.GetPointer(capsule, Names<Managed>::kFresh)));
  if (!tensor.ok()) return tensor.status();
  python.SetName(capsule, Names<Managed>::kUsed);
  *holder = *std::move(tensor);
  *out = holder.release();
  return absl::OkStatus();
}

template <typename T>
absl::Status Hold(absl::StatusOr<T> value, T** out) {
  if (!value.ok()) return value.status();
  *out = new T(*std::move(value));
  return absl::OkStatus();
}

absl::Span<const std::int64_t> Shape(const std::int64_t* shape, std::size_t ndim) { return {shape, ndim}; }

}  // namespace

extern "C" {

// What Python reads of a tensor; the shape is valid as long as the tensor.
struct packalloc_tensor_info {
  const std::int64_t* shape;
  std::uint64_t ndim;
  std::uint64_t nbytes;
  std::uint64_t address;
  std::uint64_t byte_offset;
  std::int32_t device_type;
  std::int32_t device_id;
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  std::uint32_t read_only;
};

const char* packalloc_python_last_error() { return LastError().c_str(); }

// What Python reads of a pool's cache, in bytes.
struct packalloc_pool_statistics {
  std::uint64_t hits;
  std::uint64_t misses;
  std::uint64_t evictions;
  std::uint64_t cached_bytes;
  std::uint64_t in_use_bytes;
  std::uint64_t peak_in_use_bytes;
};

// `dl_type` 0: the DLDevice that the allocator's name tells.
int packalloc_python_pool_new(const char* device, std::uint64_t page_size, std::uint64_t max_cached_bytes,
                              std::int32_t dl_type, std::int32_t dl_id, TensorPool** pool) {
  return Guarded([&]() -> absl::Status {
    const absl::StatusOr<PackedAllocator> allocator = Open(device);
    if (!allocator.ok()) return allocator.status();
    const TensorPoolOptions options{.page_size = page_size, .max_cached_bytes = max_cached_bytes};
    if (dl_type == 0) return Hold(TensorPool::Make(*allocator, options), pool);
    return Hold(TensorPool::Make({{DlDevice(dl_type, dl_id), *allocator}}, options), pool);
  });
}
void packalloc_python_pool_statistics(const TensorPool* pool, packalloc_pool_statistics* out) {
  const LruStats stats = pool->cache()->stats();
  *out = {.hits = stats.hits,
          .misses = stats.misses,
          .evictions = stats.evictions,
          .cached_bytes = stats.cached_bytes,
          .in_use_bytes = stats.in_use_bytes,
          .peak_in_use_bytes = stats.peak_in_use_bytes};
}
void packalloc_python_pool_delete(TensorPool* pool) { delete pool; }
int packalloc_python_pool_clear(const TensorPool* pool) {
  return Guarded([&] { return pool->Clear(); });
}
std::uint64_t packalloc_python_pool_used_memory(const TensorPool* pool) { return pool->UsedMemory(); }
int packalloc_python_pool_empty(const TensorPool* pool, const std::int64_t* shape, std::uint64_t ndim,
                                std::uint8_t code, std::uint8_t bits, std::uint16_t lanes, Tensor** out) {
  return Guarded([&] { return Hold(pool->Empty(Shape(shape, ndim), {code, bits, lanes}), out); });
}

void packalloc_python_tensor_delete(Tensor* tensor) { delete tensor; }
int packalloc_python_tensor_view(const Tensor* tensor, const std::int64_t* shape, std::uint64_t ndim, std::uint8_t code,
                                 std::uint8_t bits, std::uint16_t lanes, std::uint64_t byte_offset, Tensor** out) {
  return Guarded([&] { return Hold(tensor->View(Shape(shape, ndim), {code, bits, lanes}, byte_offset), out); });
}
void packalloc_python_tensor_info(const Tensor* tensor, packalloc_tensor_info* info) {
  *info = {.shape = tensor->shape().data(),
           .ndim = tensor->shape().size(),
           .nbytes = tensor->nbytes(),
           .address = tensor->data().value,
           .byte_offset = tensor->data().byte_offset,
           .device_type = tensor->device().type,
           .device_id = tensor->device().id,
           .code = tensor->dtype().code,
           .bits = tensor->dtype().bits,
           .lanes = tensor->dtype().lanes,
           .read_only = tensor->read_only()};
}
int packalloc_python_tensor_copyin(const Tensor* tensor, const void* src, std::uint64_t nbytes) {
  return Guarded([&] { return tensor->CopyIn({static_cast<const std::byte*>(src), nbytes}); });
}
int packalloc_python_tensor_copyout(const Tensor* tensor, void* dest, std::uint64_t nbytes) {
  return Guarded([&] { return tensor->CopyOut({static_cast<std::byte*>(dest), nbytes}); });
}
int packalloc_python_tensor_synchronize(const Tensor* tensor) {
  return Guarded([&] { return tensor->allocator() ? tensor->allocator().synchronize() : absl::OkStatus(); });
}

// A new reference to a capsule, "dltensor_versioned" or "dltensor".
int packalloc_python_tensor_to_capsule(const Tensor* tensor, int versioned, void** capsule) {
  return Guarded([&]() -> absl::Status {
    if (!Interpreter::Here().complete) return absl::UnavailableError("this process has no Python interpreter");
    return versioned != 0 ? ToCapsule(ToDlpackVersioned(*tensor), capsule) : ToCapsule(ToDlpack(*tensor), capsule);
  });
}

// Takes the tensor out of a capsule, which is renamed "used_..."; after an error it still has it.
int packalloc_python_tensor_from_capsule(void* capsule, Tensor** out) {
  return Guarded([&]() -> absl::Status {
    const Interpreter& python = Interpreter::Here();
    if (!python.complete) return absl::UnavailableError("this process has no Python interpreter");
    const auto is = [&](const char* name) { return python.IsValid(capsule, name) != 0; };
    if (is(Names<DLManagedTensorVersioned>::kFresh)) return FromCapsule<DLManagedTensorVersioned>(capsule, out);
    if (is(Names<DLManagedTensor>::kFresh)) return FromCapsule<DLManagedTensor>(capsule, out);
    if (is(Names<DLManagedTensorVersioned>::kUsed) || is(Names<DLManagedTensor>::kUsed)) {
      return absl::InvalidArgumentError("the DLPack capsule was consumed before");
    }
    return absl::InvalidArgumentError("not a DLPack capsule");
  });
}

}  // extern "C"

}  // namespace packalloc
