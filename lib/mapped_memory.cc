#include "lib/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "lib/checked_math.h"

namespace packalloc {

std::size_t MappedBytes(std::size_t nbytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return *RoundUp(nbytes, page);
}

absl::StatusOr<std::byte*> MapMemory(absl::string_view who, std::size_t nbytes, std::size_t alignment,
                                     bool huge_pages) {
  const auto failed = [who, nbytes](const char* call, int error) {
    return absl::ResourceExhaustedError(
        absl::StrCat(who, ": ", call, " of ", nbytes, " bytes failed: ", std::strerror(error)));
  };
  const std::size_t length = MappedBytes(nbytes);
  const std::size_t padded = length + alignment;  // at most PTRDIFF_MAX + 1 GiB
  void* mapping = mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return failed("mmap", errno);
  auto* const start = static_cast<std::byte*>(mapping);
  const std::size_t head = -reinterpret_cast<std::uintptr_t>(start) & (alignment - 1);
  std::byte* const data = start + head;
  // Untrimmed, address space would be left that nobody knows of.
  if (head != 0 && munmap(start, head) != 0) {
    const int error = errno;
    munmap(start, padded);
    return failed("munmap to align an allocation", error);
  }
  if (munmap(data + length, alignment - head) != 0) {
    const int error = errno;
    munmap(data, padded - head);  // not from `start`: the head may already be another thread's
    return failed("munmap to align an allocation", error);
  }
  // Advice: refused, the memory is as good and only slower.
  if (huge_pages) madvise(data, length, MADV_HUGEPAGE);
  return data;
}

}  // namespace packalloc
