#include "backends/mock/mock_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/checked_math.h"

namespace packalloc {
namespace {

constexpr std::size_t kChunk = std::size_t{1} << 20;

}  // namespace

MockMemory::~MockMemory() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapping_bytes_);
  } else if (data_ != nullptr) {
    ::operator delete (data_, std::align_val_t{alignment_});
  }
}

absl::Status MockMemory::Back() {
  alignment_ = std::max(alignment_, alignof(std::max_align_t));
  // Small blocks come from the heap, where address sanitizer sees a host_ptr that outlives its buffer.
  if (nbytes_ <= kChunk && alignment_ <= kChunk) {
    data_ = static_cast<std::byte*>(::operator new (nbytes_, std::align_val_t{alignment_}, std::nothrow));
  } else if (const auto padded = CheckedAdd(nbytes_, alignment_)) {
    void* at = mmap(nullptr, *padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) {
      mapping_ = at;
      mapping_bytes_ = *padded;
      const auto start = reinterpret_cast<std::uintptr_t>(at);
      data_ = static_cast<std::byte*>(at) + (*RoundUp<std::uintptr_t>(start, alignment_) - start);
    }
  }
  if (data_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the mock cannot back a block of ", nbytes_, " bytes with memory of this process"));
  }
  filled_.assign((nbytes_ - 1) / kChunk + 1, mapping_ != nullptr && fill_ == std::byte{0});
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> MockMemory::Touch(std::size_t offset, std::size_t nbytes) {
  if (external_ != nullptr) return external_ + offset;
  if (data_ == nullptr) {
    if (absl::Status backed = Back(); !backed.ok()) return backed;
  }
  if (nbytes == 0) return data_ + offset;
  for (std::size_t chunk = offset / kChunk; chunk <= (offset + nbytes - 1) / kChunk; ++chunk) {
    if (filled_[chunk]) continue;
    std::memset(data_ + chunk * kChunk, static_cast<int>(fill_), std::min(kChunk, nbytes_ - chunk * kChunk));
    filled_[chunk] = true;
  }
  return data_ + offset;
}

}  // namespace packalloc
