#include "lib/c/handles.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "lib/c/sized_struct.h"

namespace packalloc {
namespace {

// Gives back what could not be handed over. Its own failure has no one to tell.
class FreeOnFailure {
 public:
  explicit FreeOnFailure(const BufferEntry& entry) : entry_(&entry) {}
  FreeOnFailure(const FreeOnFailure&) = delete;
  FreeOnFailure& operator=(const FreeOnFailure&) = delete;
  ~FreeOnFailure() {
    if (entry_ == nullptr) return;
    try {
      entry_->allocator.free(entry_->buffer, entry_->buffer.nbytes(), entry_->spec).IgnoreError();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }
  void Disarm() { entry_ = nullptr; }

 private:
  const BufferEntry* entry_;
};

}  // namespace

// Never destroyed: handles may be used while the program exits.
HandleTable<PackedAllocator>& Allocators() {
  static auto& table = *new HandleTable<PackedAllocator>(1, "allocator");
  return table;
}
HandleTable<BufferEntry>& Buffers() {
  static auto& table = *new HandleTable<BufferEntry>(2, "buffer");
  return table;
}

absl::StatusOr<PackedAllocator> FindAllocator(std::uint64_t number) {
  auto pin = Allocators().Find(number);
  if (!pin.ok()) return pin.status();
  return **pin;
}

absl::StatusOr<std::uint64_t> AllocEntry(const PackedAllocator& allocator, std::size_t nbytes, const BufferSpec& spec) {
  absl::StatusOr<AnyBuf> buffer = allocator.alloc(nbytes, spec);
  if (!buffer.ok()) return buffer.status();
  BufferEntry entry{allocator, *std::move(buffer), spec, std::nullopt};
  FreeOnFailure undo(entry);
  absl::StatusOr<std::uint64_t> number = Buffers().Add(std::move(entry));
  if (number.ok()) undo.Disarm();
  return number;
}

absl::Status FreeEntry(std::uint64_t number, std::optional<std::size_t> nbytes, std::optional<BufferSpec> spec) {
  auto entry = Buffers().Lock(number);
  if (!entry.ok()) return entry.status();
  if (!(*entry)->base) {
    const AnyBuf& buffer = (*entry)->buffer;
    absl::Status freed =
        (*entry)->allocator.free(buffer, nbytes.value_or(buffer.nbytes()), spec.value_or((*entry)->spec));
    if (!freed.ok()) return freed;
  }
  (*std::move(entry)).Destroy();
  return absl::OkStatus();
}

absl::StatusOr<BufferSpec> SpecFromC(const packalloc_buffer_spec* spec) {
  if (spec == nullptr) return BufferSpec{};
  absl::StatusOr<packalloc_buffer_spec> c = ReadStruct(spec, "packalloc_buffer_spec", Unknown::kRefuse);
  if (!c.ok()) return c.status();
  if (std::any_of(std::begin(c->reserved), std::end(c->reserved), [](std::uint8_t byte) { return byte != 0; })) {
    return absl::InvalidArgumentError("packalloc_buffer_spec.reserved is not 0");
  }
  BufferSpec out{.uncached = c->uncached != 0,
                 .cpu_access = c->cpu_access != 0,
                 .host = c->host != 0,
                 .nolru = c->nolru != 0,
                 .zero = c->zero != 0,
                 .alignment = c->alignment};
  if (c->external_ptr != nullptr) out.external_ptr = reinterpret_cast<std::uintptr_t>(c->external_ptr);
  return out;
}

packalloc_buffer_spec SpecToC(const BufferSpec& spec) {
  packalloc_buffer_spec c = PACKALLOC_BUFFER_SPEC_INIT;
  c.alignment = spec.alignment;
  c.external_ptr = reinterpret_cast<void*>(spec.external_ptr.value_or(0));
  c.uncached = spec.uncached ? 1 : 0;
  c.cpu_access = spec.cpu_access ? 1 : 0;
  c.host = spec.host ? 1 : 0;
  c.nolru = spec.nolru ? 1 : 0;
  c.zero = spec.zero ? 1 : 0;
  return c;
}

}  // namespace packalloc
