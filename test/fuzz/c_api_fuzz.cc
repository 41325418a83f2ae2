// The C API called in any order with any handles: live, freed, NULL, of the other kind, made up. Whatever the sequence,
// a status and a sentence, and never a crash.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "packalloc/c/packalloc.h"

namespace {

// The input as a tape of choices; zeros behind its end.
class Tape {
 public:
  Tape(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return at_ >= size_; }
  std::uint8_t Byte() { return empty() ? std::uint8_t{0} : data_[at_++]; }
  template <typename T, std::size_t kCount>
  const T& Pick(const std::array<T, kCount>& choices) {
    return choices[Byte() % kCount];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::size_t at_ = 0;
};

constexpr std::size_t kBytes = 4096;
std::array<std::uint8_t, kBytes> host;
std::array<std::uint8_t, kBytes> external;

// What an answer must be: a status, and a sentence where it is an error.
bool Check(packalloc_status status) {
  if (status < PACKALLOC_OK || status > PACKALLOC_UNAUTHENTICATED) std::abort();
  if (status != PACKALLOC_OK && *packalloc_last_error() == '\0') std::abort();
  return status == PACKALLOC_OK;
}

class Session {
 public:
  explicit Session(Tape tape) : tape_(tape) {
    handles_ = {nullptr, &handles_, reinterpret_cast<void*>(std::uintptr_t{0x9000000010000000}),
                reinterpret_cast<void*>(~std::uintptr_t{0})};
  }

  void Run() {
    while (!tape_.empty()) Step();
    // Everything goes, views before what they are views of.
    for (bool progress = true; progress;) {
      progress = false;
      for (void* handle : handles_) {
        progress |= packalloc_free(static_cast<packalloc_buffer*>(handle)) == PACKALLOC_OK;
      }
      for (Export& exported : exports_) {
        const packalloc_buffer_spec spec = PACKALLOC_BUFFER_SPEC_INIT;
        for (const packalloc_raw_buffer& raw : exported.buffers) {
          exported.record.free(exported.record.self, raw, kExportedBytes, &spec);
        }
        exported.buffers.clear();
      }
    }
    for (void* handle : handles_) packalloc_close(static_cast<packalloc_allocator*>(handle));
    for (const Export& exported : exports_) exported.record.release(exported.record.self);
    Check(packalloc_shutdown());
  }

 private:
  static constexpr std::size_t kExportedBytes = 100;
  // Each one may be packed and exported again: so deep calls may nest.
  static constexpr std::size_t kMaxExports = 12;

  struct Export {
    packalloc_record record;
    std::vector<packalloc_raw_buffer> buffers;
  };

  void* Handle() {
    const std::size_t back = tape_.Byte();
    // Mostly one of the last, so that sequences meet.
    return handles_[back < handles_.size() ? handles_.size() - 1 - back : back % handles_.size()];
  }
  packalloc_allocator* Allocator() { return static_cast<packalloc_allocator*>(Handle()); }
  packalloc_buffer* Buffer() { return static_cast<packalloc_buffer*>(Handle()); }
  std::size_t Size() {
    return tape_.Pick(std::array<std::size_t, 10>{0, 1, 16, 100, 1000, kBytes, SIZE_MAX, SIZE_MAX / 2 + 1,
                                                  std::size_t{tape_.Byte()}, std::size_t{tape_.Byte()} * 16});
  }
  // As many bytes as the host has to give.
  std::size_t HostSize() {
    const std::size_t size = Size();
    return size <= kBytes ? size : kBytes;
  }
  // An output is there exactly where the call succeeded.
  void KeepNew(packalloc_status status, void* handle) {
    if (Check(status) != (handle != nullptr)) std::abort();
    if (handle != nullptr) handles_.push_back(handle);
  }

  template <typename T>
  T Sized() {
    T value{};
    value.struct_size =
        tape_.Pick(std::array<std::size_t, 6>{sizeof value, sizeof value, sizeof value, 0, 8, SIZE_MAX});
    return value;
  }

  packalloc_buffer_spec Spec(std::size_t nbytes) {
    auto spec = Sized<packalloc_buffer_spec>();
    const std::uint8_t flags = tape_.Byte();
    spec.uncached = flags & 1u;
    spec.cpu_access = flags & 2u;
    spec.host = flags & 4u;
    spec.nolru = flags & 8u;
    spec.zero = flags & 16u;
    spec.reserved[0] = (flags & 0xE0u) == 0xE0u ? 1 : 0;
    spec.alignment = tape_.Pick(std::array<std::size_t, 7>{0, 0, 1, 64, 4096, 3, SIZE_MAX});
    if ((flags & 0x60u) == 0x60u && nbytes <= kBytes) spec.external_ptr = external.data();
    return spec;
  }

  void Step() {
    switch (tape_.Byte() % 22) {
      case 0: {
        packalloc_allocator* device = nullptr;
        const char* name = tape_.Pick(std::array<const char*, 8>{"CPU", "CPU+lru:max_bytes=8KiB", "MOCK",
                                                                 "MOCK+lru+lru", "NULL", "nope", "CPU+", nullptr});
        const packalloc_status status = packalloc_open(name, &device);
        KeepNew(status, device);
        break;
      }
      case 1: {
        packalloc_allocator* layered = nullptr;
        if (layers_++ > 12) break;
        packalloc_allocator* inner = Allocator();
        const char* layers = tape_.Pick(std::array<const char*, 4>{"lru", "lru:max_waste=0.5", "lru:x=y", nullptr});
        const packalloc_status status = packalloc_add_layers(inner, layers, &layered);
        KeepNew(status, layered);
        break;
      }
      case 2: {
        packalloc_buffer* buffer = nullptr;
        packalloc_allocator* allocator = Allocator();
        const std::size_t nbytes = Size();
        const packalloc_buffer_spec spec = Spec(nbytes);
        const bool plain = tape_.Byte() % 2 == 0;
        const packalloc_status status = packalloc_alloc(allocator, nbytes, plain ? nullptr : &spec, &buffer);
        KeepNew(status, buffer);
        break;
      }
      case 3:
      case 4: {
        packalloc_buffer* view = nullptr;
        packalloc_buffer* base = Buffer();
        const std::size_t nbytes = Size();
        const packalloc_status status = packalloc_offset(base, nbytes, Size(), &view);
        KeepNew(status, view);
        break;
      }
      case 5:
        Check(packalloc_free(Buffer()));
        break;
      case 6:
        Check(packalloc_close(Allocator()));
        break;
      case 7:
        Check(packalloc_copyin(Buffer(), host.data(), HostSize()));
        break;
      case 8:
        Check(packalloc_copyout(host.data(), Buffer(), HostSize()));
        break;
      case 9: {
        packalloc_device_address address{};
        Check(packalloc_addr(Buffer(), &address));
        break;
      }
      case 10: {
        void* pointer = nullptr;
        packalloc_buffer* buffer = Buffer();
        std::size_t nbytes = 0;
        if (Check(packalloc_host_ptr(buffer, &pointer)) && Check(packalloc_nbytes(buffer, &nbytes)) && nbytes > 0) {
          host[0] = static_cast<const std::uint8_t*>(pointer)[nbytes - 1];
        }
        break;
      }
      case 11: {
        packalloc_buffer* dest = Buffer();
        Check(packalloc_transfer(dest, Buffer(), Size()));
        break;
      }
      case 12: {
        const char* path = nullptr;
        packalloc_buffer* dest = Buffer();
        Check(packalloc_copy(dest, Buffer(), tape_.Byte() % 2 == 0 ? &path : nullptr));
        break;
      }
      case 13: {
        std::array<packalloc_load_item, 2> items{};
        for (packalloc_load_item& item : items) {
          item = {Buffer(),
                  tape_.Pick(std::array<const char*, 4>{"/proc/self/exe", "/dev/null", "/nonexistent", nullptr}),
                  tape_.Pick(std::array<std::uint64_t, 4>{0, 1, 5000, UINT64_MAX})};
        }
        const std::int32_t go_on = tape_.Byte() % 2;
        Check(packalloc_load(
            items.data(), tape_.Byte() % 3,
            [](void* user_data, std::uint64_t, std::uint64_t) { return *static_cast<const std::int32_t*>(user_data); },
            const_cast<std::int32_t*>(&go_on)));
        break;
      }
      case 14: {
        auto traits = Sized<packalloc_traits>();
        if (traits.struct_size == SIZE_MAX) traits.struct_size = sizeof traits;
        packalloc_allocator* allocator = Allocator();
        if (Check(packalloc_get_traits(allocator, &traits)) && traits.name == nullptr) std::abort();
        break;
      }
      case 15: {
        packalloc_memory_info info{};
        packalloc_allocator* allocator = Allocator();
        Check(packalloc_get_memory_info(allocator, &info));
        Check(packalloc_synchronize(allocator));
        break;
      }
      case 16: {
        auto stats = Sized<packalloc_cache_stats>();
        Check(packalloc_get_cache_stats(Allocator(), &stats));
        break;
      }
      case 17:
        Check(packalloc_trim(Allocator(), HostSize()));
        break;
      case 18: {
        void* native = nullptr;
        Check(packalloc_native_handle(Allocator(), tape_.Byte() % 4 == 0 ? nullptr : "cuda.stream", &native));
        break;
      }
      case 19: {
        if (exports_.size() >= kMaxExports) break;
        auto record = Sized<packalloc_record>();
        if (record.struct_size == SIZE_MAX) record.struct_size = sizeof record;
        if (Check(packalloc_export(Allocator(), &record))) exports_.push_back({record, {}});
        break;
      }
      case 20: {
        if (exports_.empty()) break;
        // The new allocator releases the struct; this side then has one of its own no more, and finds that out.
        const Export& exported = exports_[tape_.Byte() % exports_.size()];
        packalloc_allocator* packed = nullptr;
        const packalloc_status status = packalloc_pack(&exported.record, &packed);
        KeepNew(status, packed);
        break;
      }
      default:
        CallExported();
    }
  }

  // The functions of an exported struct, also after its release.
  void CallExported() {
    if (exports_.empty()) return;
    Export& exported = exports_[tape_.Byte() % exports_.size()];
    const packalloc_record& r = exported.record;
    packalloc_raw_buffer raw{};
    if (!exported.buffers.empty() && tape_.Byte() % 4 != 0) {
      raw = exported.buffers[tape_.Byte() % exported.buffers.size()];
    }
    if (tape_.Byte() % 8 == 0) raw.word[tape_.Byte() % 4] ^= std::uint64_t{1} << (tape_.Byte() % 64);
    const packalloc_buffer_spec spec = PACKALLOC_BUFFER_SPEC_INIT;
    packalloc_raw_buffer made{};
    switch (tape_.Byte() % 8) {
      case 0:
      case 1:
        if (Check(r.alloc(r.self, kExportedBytes, &spec, &made))) exported.buffers.push_back(made);
        break;
      case 2:
        Check(r.free(r.self, raw, tape_.Byte(), &spec));
        break;
      case 3:
        Check(r.copyin(r.self, raw, host.data(), HostSize()));
        break;
      case 4:
        Check(r.copyout(r.self, host.data(), raw, HostSize()));
        break;
      case 5: {
        packalloc_device_address address{};
        Check(r.addr(r.self, raw, &address));
        break;
      }
      case 6: {
        if (r.offset == nullptr) break;
        const std::size_t nbytes = Size();
        if (Check(r.offset(r.self, raw, nbytes, Size(), &made))) exported.buffers.push_back(made);
        break;
      }
      default:
        r.release(r.self);
    }
  }

  Tape tape_;
  std::vector<void*> handles_;
  std::vector<Export> exports_;
  std::size_t layers_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Session(Tape(data, size < 4096 ? size : 4096)).Run();
  return 0;
}
