// A C struct of functions as a record.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/c/disk_source.h"
#include "lib/c/handles.h"
#include "lib/c/last_error.h"
#include "lib/c/sized_struct.h"
#include "lib/checked_math.h"
#include "lib/checks.h"
#include "packalloc/c_record.h"

namespace packalloc {
namespace {

using Raw = packalloc_raw_buffer;

// The struct, and its end when the last copy of the record is gone.
class CRecord final : public NativeHandles {
 public:
  explicit CRecord(const packalloc_record& record) : c(record), name_(record.name == nullptr ? "C" : record.name) {}
  CRecord(const CRecord&) = delete;
  CRecord& operator=(const CRecord&) = delete;
  ~CRecord() override {
    if (c.release == nullptr) return;
    try {
      c.release(c.self);
    } catch (...) {  // NOLINT(bugprone-empty-catch): a destructor has no one to tell
    }
  }

  const std::string& name() const { return name_; }

  absl::Status Answer(packalloc_status status, const char* function) const {
    if (status == PACKALLOC_OK) return absl::OkStatus();
    return StatusFromC(status, name_, function, c.last_error == nullptr ? nullptr : c.last_error(c.self));
  }

  absl::Status BrokenPromise(absl::string_view what) const {
    return absl::InternalError(absl::StrCat(name_, ": ", what));
  }

  absl::StatusOr<void*> Get(const std::string& key) const override {
    void* handle = nullptr;
    if (absl::Status got = Answer(c.native_handle(c.self, key.c_str(), &handle), "native_handle"); !got.ok())
      return got;
    return handle;
  }

  const packalloc_record c;

 private:
  const std::string name_;
};

absl::StatusOr<Raw> Alloc(const CRecord& record, std::size_t nbytes, const BufferSpec& spec,
                          std::size_t max_alloc_bytes) {
  if (absl::Status valid = CheckRequest(record.name(), nbytes, spec); !valid.ok()) return valid;
  if (nbytes > max_alloc_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(record.name(), ": alloc of ", nbytes,
                                                     " bytes, but the largest single allocation is ", max_alloc_bytes));
  }
  Raw raw{};
  if (nbytes == 0) return raw;
  const packalloc_buffer_spec c_spec = SpecToC(spec);
  absl::Status status = record.Answer(record.c.alloc(record.c.self, nbytes, &c_spec, &raw), "alloc");
  if (!status.ok()) return status;
  return raw;
}

void AddRequired(const std::shared_ptr<const CRecord>& c, Allocator<Raw>& out) {
  out.alloc = [c, max = out.traits.max_alloc_bytes](std::size_t nbytes, const BufferSpec& spec) {
    return Alloc(*c, nbytes, spec, max);
  };
  out.free = [c](const Raw& buf, std::size_t nbytes, const BufferSpec& spec) {
    if (nbytes == 0) return absl::OkStatus();
    const packalloc_buffer_spec c_spec = SpecToC(spec);
    return c->Answer(c->c.free(c->c.self, buf, nbytes, &c_spec), "free");
  };
  out.copyin = [c](const Raw& dest, absl::Span<const std::byte> src) {
    if (src.empty()) return absl::OkStatus();
    return c->Answer(c->c.copyin(c->c.self, dest, src.data(), src.size()), "copyin");
  };
  out.copyout = [c](absl::Span<std::byte> dest, const Raw& src) {
    if (dest.empty()) return absl::OkStatus();
    return c->Answer(c->c.copyout(c->c.self, dest.data(), src, dest.size()), "copyout");
  };
  out.addr = [c](const Raw& buf) {
    packalloc_device_address address{0, 0};
    if (c->c.addr(c->c.self, buf, &address) != PACKALLOC_OK) return DeviceAddress{};
    return DeviceAddress{address.value, address.byte_offset};
  };
}

void AddOptional(const std::shared_ptr<CRecord>& c, Allocator<Raw>& out) {
  if (c->c.offset != nullptr) {
    out.offset = [c](const Raw& buf, std::size_t nbytes, std::size_t byte_offset) -> absl::StatusOr<Raw> {
      Raw view{};
      if (nbytes == 0) return view;
      absl::Status made = c->Answer(c->c.offset(c->c.self, buf, nbytes, byte_offset, &view), "offset");
      if (!made.ok()) return made;
      return view;
    };
  }
  if (c->c.transfer != nullptr) {
    out.transfer = [c](const Raw& dest, const Raw& src, std::size_t nbytes) {
      if (nbytes == 0) return absl::OkStatus();
      return c->Answer(c->c.transfer(c->c.self, dest, src, nbytes), "transfer");
    };
  }
  if (c->c.copy_from_disk != nullptr) {
    out.copy_from_disk = [c](const Raw& dest, const DiskExtent& src, std::size_t nbytes) -> absl::Status {
      if (nbytes > src.nbytes) return CheckCopy("copy_from_disk from the extent", nbytes, src.nbytes);
      if (nbytes == 0) return absl::OkStatus();
      DiskSource source(src);
      absl::Status status = c->Answer(c->c.copy_from_disk(c->c.self, dest, source.c(), nbytes), "copy_from_disk");
      return status.ok() ? status : source.Explain(status);
    };
  }
  if (c->c.host_ptr != nullptr) {
    out.host_ptr = [c](const Raw& buf) -> absl::StatusOr<std::byte*> {
      void* pointer = nullptr;
      if (absl::Status got = c->Answer(c->c.host_ptr(c->c.self, buf, &pointer), "host_ptr"); !got.ok()) return got;
      if (pointer == nullptr) return c->BrokenPromise("host_ptr answered OK and gave NULL");
      return static_cast<std::byte*>(pointer);
    };
  }
  if (c->c.memory_info != nullptr) {
    out.memory_info = [c]() -> absl::StatusOr<MemoryInfo> {
      packalloc_memory_info info{0, 0};
      if (absl::Status got = c->Answer(c->c.memory_info(c->c.self, &info), "memory_info"); !got.ok()) return got;
      if (info.free_bytes > info.total_bytes) {
        return c->BrokenPromise(
            absl::StrCat("memory_info says ", info.free_bytes, " bytes are free of ", info.total_bytes));
      }
      return MemoryInfo{info.free_bytes, info.total_bytes};
    };
  }
  if (c->c.synchronize != nullptr) {
    out.synchronize = [c] { return c->Answer(c->c.synchronize(c->c.self), "synchronize"); };
  }
  if (c->c.native_handle != nullptr) out.controls.Add<NativeHandles>(c);
}

}  // namespace

absl::StatusOr<Allocator<packalloc_raw_buffer>> FromC(const packalloc_record& record) {
  absl::StatusOr<packalloc_record> read = ReadStruct(&record, "packalloc_record", Unknown::kIgnore);
  if (!read.ok()) return read.status();
  const char* missing = read->alloc == nullptr     ? "alloc"
                        : read->free == nullptr    ? "free"
                        : read->copyin == nullptr  ? "copyin"
                        : read->copyout == nullptr ? "copyout"
                        : read->addr == nullptr    ? "addr"
                                                   : nullptr;
  if (missing != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the packalloc_record '", read->name == nullptr ? "C" : read->name, "' has no ", missing));
  }
  if (read->min_alignment == 0) read->min_alignment = 1;
  if (!IsPowerOfTwo(read->min_alignment)) {
    return absl::InvalidArgumentError(
        absl::StrCat("packalloc_record.min_alignment is ", read->min_alignment, ", not a power of two"));
  }
  // What can fail is done before the record becomes this one's to release.
  Allocator<packalloc_raw_buffer> out;
  out.traits.min_alignment = read->min_alignment;
  if (read->max_alloc_bytes != 0) out.traits.max_alloc_bytes = read->max_alloc_bytes;
  out.traits.address_is_pointer = read->address_is_pointer != 0;
  out.traits.transfer_domain = NewDomain();
  out.traits.memory_domain = NewDomain();
  auto c = std::make_shared<CRecord>(*read);
  out.traits.name = c->name();
  AddRequired(c, out);
  AddOptional(c, out);
  return out;
}

}  // namespace packalloc
