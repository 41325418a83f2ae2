// The bytes of one mock block: address space only, until touched. Each part is filled when it is touched first.
#ifndef PACKALLOC_BACKENDS_MOCK_MOCK_MEMORY_H_
#define PACKALLOC_BACKENDS_MOCK_MOCK_MEMORY_H_

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"

namespace packalloc {

class MockMemory {
 public:
  MockMemory(std::size_t nbytes, std::size_t alignment, std::byte fill)
      : nbytes_(nbytes), alignment_(alignment), fill_(fill) {}
  // Memory that somebody else owns.
  MockMemory(std::byte* external, std::size_t nbytes) : nbytes_(nbytes), external_(external) {}
  MockMemory(const MockMemory&) = delete;
  MockMemory& operator=(const MockMemory&) = delete;
  ~MockMemory();

  // Bytes [offset, offset + nbytes), which lie inside. RESOURCE_EXHAUSTED where this process cannot have them.
  absl::StatusOr<std::byte*> Touch(std::size_t offset, std::size_t nbytes);

 private:
  absl::Status Back();

  std::size_t nbytes_;
  std::size_t alignment_ = 1;
  std::byte fill_{};
  std::byte* external_ = nullptr;
  void* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  std::byte* data_ = nullptr;
  std::vector<bool> filled_;  // one per chunk
};

}  // namespace packalloc

#endif  // PACKALLOC_BACKENDS_MOCK_MOCK_MEMORY_H_
