#include "lib/tensor/read_only.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"

namespace packalloc {
namespace {

struct ReadOnlyMark {};

absl::Status Refused() { return absl::FailedPreconditionError("the memory is read-only"); }

}  // namespace

absl::StatusOr<PackedAllocator> ReadOnly(const PackedAllocator& packed) {
  return ApplyLayer(packed, [](AnyRecord record) -> absl::StatusOr<AnyRecord> {
    record.copyin = [](const AnyBuf&, absl::Span<const std::byte>) { return Refused(); };
    if (record.copy_from_disk) {
      record.copy_from_disk = [](const AnyBuf&, const DiskExtent&, std::size_t) { return Refused(); };
    }
    record.transfer = nullptr;
    record.host_ptr = nullptr;
    record.traits.transfer_domain = 0;
    record.controls.Add(std::make_shared<ReadOnlyMark>());
    return record;
  });
}

bool IsReadOnly(const PackedAllocator& packed) { return packed.controls().Find<ReadOnlyMark>() != nullptr; }

}  // namespace packalloc
