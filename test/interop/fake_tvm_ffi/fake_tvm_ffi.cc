#include "test/interop/fake_tvm_ffi/fake_tvm_ffi.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#ifndef FAKE_TVM_FFI_MINOR
#define FAKE_TVM_FFI_MINOR 1
#endif

namespace {

using namespace packalloc::tvm_ffi_abi;

constexpr std::int32_t kObject = 64;
constexpr std::int32_t kString = 65;
constexpr std::int32_t kError = 67;

struct Object {
  std::atomic<std::uint64_t> references;
  std::int32_t type_index;
  std::uint32_t padding;
  void (*deleter)(void* self, int flags);
};

struct Error {
  Object object;
  char kind[32];
  char message[512];
};

std::atomic<bool> live{true};
std::atomic<bool> fail_to_set{false};
std::atomic<CustomAllocator*> custom{nullptr};
std::atomic<TensorAllocator> for_process{nullptr};
thread_local TensorAllocator for_thread = nullptr;

ObjectAllocHeader& HeaderOf(void* body) { return static_cast<ObjectAllocHeader*>(body)[-1]; }

// As the real default: the body 16 bytes into a block of malloc.
void BuiltinDelete(void* body) { std::free(static_cast<char*>(body) - 16); }
void* BuiltinAllocate(std::size_t size, std::size_t /*alignment*/, std::int32_t /*type_index*/, void* /*context*/) {
  char* block = static_cast<char*>(std::malloc(16 + size));
  if (block == nullptr) throw std::bad_alloc();
  HeaderOf(block + 16).delete_space = &BuiltinDelete;
  return block + 16;
}
CustomAllocator builtin{&BuiltinAllocate, nullptr};

void DeleteObject(void* self, int /*flags*/) {
  std::memset(self, 0xDD, sizeof(Object));
  HeaderOf(self).delete_space(self);
}

void* MakeWith(CustomAllocator& from, std::size_t size, std::size_t alignment, std::int32_t type_index) {
  void* body = from.allocate(size, alignment, type_index, from.context);
  if (body == nullptr) return nullptr;
  std::memset(body, 0xAB, size);
  if (size >= sizeof(Object)) {
    auto* object = ::new (body) Object{};
    object->references = 1;
    object->type_index = type_index;
    object->deleter = &DeleteObject;
  }
  return body;
}

void* Make(std::size_t size, std::int32_t type_index) {
  return MakeWith(live ? *TVMFFIGetCustomAllocator() : builtin, size, alignof(Object), type_index);
}

struct Raised {
  Error* error = nullptr;
  ~Raised() { Clear(); }
  void Clear() {
    if (error != nullptr) TVMFFIObjectDecRef(error);
    error = nullptr;
  }
};
thread_local Raised raised;

void RaiseFor(void* context, const char* kind, const char* message);

}  // namespace

extern "C" {

void TVMFFIGetVersion(Version* out) { *out = {0, FAKE_TVM_FFI_MINOR, 13}; }

CustomAllocator* TVMFFIGetCustomAllocator() {
  CustomAllocator* set = custom;
  return set != nullptr ? set : &builtin;
}

#ifndef FAKE_TVM_FFI_WITHOUT_HOOK
int TVMFFISetCustomAllocator(CustomAllocator* allocator) {
  if (fail_to_set) return -1;
  custom = allocator;
  return 0;
}
#endif

int TVMFFIObjectDecRef(void* object) {
  auto* counted = static_cast<Object*>(object);
  if (--counted->references == 0) counted->deleter(object, 3);
  return 0;
}

int TVMFFIStringFromByteArray(const ByteArray* text, Any* out) {
  *out = {};
  if (text->size <= 7) return 0;
  void* string = Make(sizeof(Object) + sizeof(ByteArray) + text->size + 1, kString);
  if (string == nullptr) return -1;
  out->type_index = kString;
  out->object = string;
  return 0;
}

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message) {
  auto* error = static_cast<Error*>(Make(sizeof(Error), kError));
  if (error == nullptr) std::abort();  // as the real one, which constructs the error at NULL
  std::snprintf(error->kind, sizeof error->kind, "%s", kind);
  std::snprintf(error->message, sizeof error->message, "%s", message);
  raised.Clear();
  raised.error = error;
}

const TypeInfo* TVMFFIGetTypeInfo(std::int32_t type_index) {
  static const TypeInfo types[] = {{kObject, 0, {"ffi.Object", 10}},
                                   {kString, 1, {"ffi.String", 10}},
                                   {kError, 1, {"ffi.Error", 9}},
                                   {200, 1, {"test.Node", 9}}};
  for (const TypeInfo& type : types) {
    if (type.type_index == type_index) return &type;
  }
  std::exit(-1);
}

int TVMFFIEnvSetDLPackManagedTensorAllocator(TensorAllocator allocator, int write_to_global_context,
                                             TensorAllocator* original) {
  if (fail_to_set) return -1;
  if (original != nullptr) *original = for_thread;
  if (write_to_global_context != 0) for_process = allocator;
  for_thread = allocator;
  return 0;
}

TensorAllocator TVMFFIEnvGetDLPackManagedTensorAllocator() {
  return for_thread != nullptr ? for_thread : for_process.load();
}

int TVMFFIEnvTensorAlloc(void* prototype, DLManagedTensorVersioned** out) {
  const TensorAllocator allocator = TVMFFIEnvGetDLPackManagedTensorAllocator();
  if (allocator == nullptr) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "no allocator is set");
    return -1;
  }
  return allocator(prototype, out, nullptr, &RaiseFor);
}

void FakeTvmFfiSetLive(bool now) { live = now; }
void* FakeTvmFfiMake(std::size_t size, std::size_t alignment, std::int32_t type_index) {
  return MakeWith(*TVMFFIGetCustomAllocator(), size, alignment, type_index);
}
void FakeTvmFfiFailToSet(bool fail) { fail_to_set = fail; }
const char* FakeTvmFfiRaisedKind() { return raised.error != nullptr ? raised.error->kind : ""; }
const char* FakeTvmFfiRaisedMessage() { return raised.error != nullptr ? raised.error->message : ""; }
void FakeTvmFfiClearRaised() { raised.Clear(); }
}

namespace {
void RaiseFor(void* /*context*/, const char* kind, const char* message) { TVMFFIErrorSetRaisedFromCStr(kind, message); }
}  // namespace
