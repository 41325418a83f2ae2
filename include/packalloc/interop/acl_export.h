// A packed allocator as the allocator of an Ascend stream: CANN then takes the memory of its operators and models
// (outputs, workspaces) from it.
//
//   packalloc::AclExportOptions options;
//   options.stream = stream;                                        // an aclrtStream
//   absl::StatusOr<packalloc::AclRegistration> registration =
//       packalloc::ExportAclAllocator(npu_memory, options);         // libascendcl.so is found here
//   if (!registration.ok()) return registration.status();
//   aclmdlExecuteAsync(model, inputs, outputs, stream);             // allocates from npu_memory
//   absl::Status trimmed = registration->Trim();                    // between runs, where memory is tight
//   absl::Status ended = registration->Unregister();                // or the destructor; before aclrtDestroyStream
#ifndef PACKALLOC_INTEROP_ACL_EXPORT_H_
#define PACKALLOC_INTEROP_ACL_EXPORT_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/interop/acl.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

struct AclExportOptions {
  // The aclrtStream whose allocator it becomes. Not null: CANN registers none with the default stream.
  void* stream = nullptr;
  // Of every block; say the alignment that the operators need. Not `zero` and not `external_ptr`.
  BufferSpec spec{};
  // The runtime's functions; unset: LoadAclFunctions(library).
  std::optional<AclFunctions> functions{};
  std::string library{};

  // CANN frees a block when the work that uses it is issued, not when it is done. Freed blocks are therefore kept, to
  // serve later requests of the same stream in its order, and go back to the allocator only when the stream has been
  // synchronised (Trim, Unregister) or, above this many bytes and where memory runs out, is seen to be idle.
  std::size_t max_kept_bytes = std::size_t{256} << 20;
  // Give freed blocks back at once: right only for an allocator whose own free is safe while this stream's work is
  // pending, as that of one that works on this very stream, or waits for it. A cache that evicts is as safe as what is
  // below it.
  bool free_at_once = false;
};

struct AclExportStats {
  std::uint64_t allocs = 0;   // blocks given out
  std::uint64_t reused = 0;   // of those, from kept blocks
  std::uint64_t advised = 0;  // of those, at the address that alloc_advise suggested
  std::uint64_t frees = 0;
  std::uint64_t failed_allocs = 0;  // answered with null
  std::uint64_t failed_frees = 0;   // of the allocator, and calls with what is no live block of this object
  std::size_t live_bytes = 0;       // in CANN's hands
  std::size_t live_blocks = 0;
  std::size_t kept_bytes = 0;  // freed by CANN, not yet given back; also what is just being given back
  std::size_t kept_blocks = 0;
};

namespace internal {
struct AclRegistrationState;
}

// A packed allocator registered with a stream, until Unregister or the destructor. Movable; a moved-from one is empty:
// its calls are FAILED_PRECONDITION or give nothing. Thread-safe, but for the destructor and moves. The callbacks,
// stats and Trim are usable in a forked child if the allocator and the runtime are; what another thread was just giving
// back at the fork is lost to the child.
class AclRegistration {
 public:
  AclRegistration(AclRegistration&&) noexcept;
  AclRegistration& operator=(AclRegistration&&) noexcept;
  // Unregisters. Where that fails, blocks that the device may still be using are not given back, ever: memory that
  // leaks is better than memory that two write to. Unregister says why.
  ~AclRegistration();

  // Takes the allocator off the stream (unless another has been registered with it meanwhile), synchronises the stream,
  // and gives back all blocks, those too that CANN has not freed. A later callback of CANN's finds nothing: alloc
  // answers null and free does nothing. What the runtime answers, where it fails: then nothing has been given back, and
  // it can be called again. What the allocator's free answers, where that fails: what it refused is kept, for another
  // call to give back. OK if there is nothing left to do.
  absl::Status Unregister();

  // Synchronises the stream and gives back the blocks that CANN had freed before. Not to be called from a callback.
  absl::Status Trim();

  AclExportStats stats() const;
  // Why a callback last answered null or could not free, as the callbacks have no way to say so. OK if none has.
  absl::Status last_error() const;
  // What was registered. Callable from any thread, also by others than CANN, until Unregister.
  AclCallbacks callbacks() const;
  void* stream() const;

 private:
  friend absl::StatusOr<AclRegistration> ExportAclAllocator(const PackedAllocator&, const AclExportOptions&);
  explicit AclRegistration(std::unique_ptr<internal::AclRegistrationState> state);
  std::unique_ptr<internal::AclRegistrationState> state_;
};

// Registers `packed`, which the registration keeps alive, with options.stream. All four callbacks are set; a block is
// described by itself, checked against freed and foreign ones; a request of 0 bytes gets a block of one. The device
// address of a block is what packed.addr answers: memory that the device of the stream can reach, where the runtime is
// CANN's.
//
// Uses the aclrtAllocator functions but GetByStream, and aclrtSynchronizeStream; GetByStream and aclrtStreamQuery where
// they are there. FAILED_PRECONDITION for an empty `packed`. INVALID_ARGUMENT for a null stream, a bad spec, or options
// that lack a function, which is named. UNAVAILABLE where there is no runtime, or one without such a function. Else
// what the runtime answers: INVALID_ARGUMENT (100000), RESOURCE_EXHAUSTED (200000, 207001), INTERNAL. Thread-safe.
absl::StatusOr<AclRegistration> ExportAclAllocator(const PackedAllocator& packed, const AclExportOptions& options);

}  // namespace packalloc

#endif  // PACKALLOC_INTEROP_ACL_EXPORT_H_
