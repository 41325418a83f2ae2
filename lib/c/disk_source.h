// An extent of a file as a C struct, and back.
#ifndef PACKALLOC_LIB_C_DISK_SOURCE_H_
#define PACKALLOC_LIB_C_DISK_SOURCE_H_

#include <mutex>

#include "absl/status/status.h"
#include "packalloc/allocator.h"
#include "packalloc/c/record.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

// Valid as long as this object and `extent`.
class DiskSource {
 public:
  explicit DiskSource(const DiskExtent& extent);

  const packalloc_disk_source* c() const { return &c_; }
  // The reading's own error, where it was that which made the call fail with `status`.
  absl::Status Explain(const absl::Status& status) const;

  // The extent behind a source of this library's making, or null.
  static const DiskExtent* ExtentOf(const packalloc_disk_source& source);

 private:
  static packalloc_status Read(void* self, std::uint64_t offset, void* dest, std::size_t nbytes);

  const DiskExtent& extent_;
  packalloc_disk_source c_;
  mutable std::mutex mutex_;  // guards error_: any thread may read
  absl::Status error_;
};

// copy_from_disk from a source that somebody else made: in chunks through host memory, where `allocator` has views.
absl::Status CopyFromSource(const PackedAllocator& allocator, const AnyBuf& dest, const packalloc_disk_source& source,
                            std::size_t nbytes);

}  // namespace packalloc

#endif  // PACKALLOC_LIB_C_DISK_SOURCE_H_
