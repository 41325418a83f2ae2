// The allocator object behind the callbacks that packalloc gives to an allocator descriptor.
//
//   auto object = AclObject::Make(packed, {.spec = spec});
//   Register(stream, (*object)->callbacks());
//   (*object)->Stop();                                     // no block is given out any more
//   Synchronize(stream);
//   absl::Status ended = (*object)->End();                 // everything is given back
//
// Objects and blocks are numbers in the guise of pointers (handle_table.h): a runtime that keeps them longer than it
// should reaches nothing that is gone, and get_addr_from_block, which gets no object, finds the block's by the number.
#ifndef PACKALLOC_LIB_INTEROP_ACL_OBJECT_H_
#define PACKALLOC_LIB_INTEROP_ACL_OBJECT_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/fork_guard.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/interop/acl.h"
#include "packalloc/interop/acl_export.h"
#include "packalloc/packed_allocator.h"

namespace packalloc::internal {

class AclObject : public std::enable_shared_from_this<AclObject>, private ForkGuarded {
 public:
  struct Options {
    BufferSpec spec{};
    std::size_t max_kept_bytes = 0;
    bool free_at_once = false;
    // Whether all work on the stream is done; must execute nothing there. Null: cannot be told.
    std::function<bool()> idle{};
  };
  // The callbacks work until End. Errors as ExportAclAllocator.
  static absl::StatusOr<std::shared_ptr<AclObject>> Make(const PackedAllocator& packed, Options options);
  AclObject(const AclObject&) = delete;
  AclObject& operator=(const AclObject&) = delete;
  ~AclObject() override { EndForkGuard(this); }

  AclCallbacks callbacks() const;
  AclExportStats stats() const;
  absl::Status last_error() const;

  // Gives the kept blocks back if `done`, which may wait, is OK. Blocks that are freed meanwhile stay.
  absl::Status GiveBack(const std::function<absl::Status()>& done);
  // From now on alloc answers null.
  void Stop();
  // Gives everything back; the callbacks find the object no more. The first error of the allocator: what it refused is
  // kept, for another End.
  absl::Status End();
  // The same where no block is live, kept, or on its way between the two.
  void EndIfUnused();

  // A block of `nbytes`, at `advised` where one is kept there; null: nowhere in particular. The error is last_error()
  // too, until another call fails.
  absl::StatusOr<void*> Take(std::size_t nbytes, void* advised);

  // Where an address lies: in which live block, how far from its start.
  struct Place {
    PackedAllocator allocator;
    AnyBuf buffer;
    std::size_t offset;  // of the address; bytes behind it are the block's up to `nbytes`
    std::size_t nbytes;  // of the block, as asked for
  };
  std::optional<Place> Locate(const void* address) const;
  // The buffer of a live block, if it is of an exported allocator that is `allocator`.
  static std::optional<AnyBuf> BufferOf(void* block, const PackedAllocator& allocator);
  // Whether the addresses of exported blocks are pointers; nullopt for the callbacks of somebody else.
  static std::optional<bool> AddressIsPointer(const AclCallbacks& callbacks);
  // The object of a handle that callbacks() gave, until End.
  static absl::StatusOr<std::shared_ptr<AclObject>> Find(void* object);

  // The callbacks.
  static void* Alloc(void* object, std::size_t nbytes) noexcept;
  static void* AllocAdvise(void* object, std::size_t nbytes, void* address) noexcept;
  static void Free(void* object, void* block) noexcept;
  static void* GetAddrFromBlock(void* block) noexcept;

 private:
  struct Held {
    AnyBuf buffer{};
    std::size_t capacity = 0;  // bytes allocated
    std::size_t nbytes = 0;    // bytes asked for by who has it now
    void* address = nullptr;
    std::uint64_t number = 0;
  };
  // Live blocks by address, kept ones by capacity. One type of node, so that a block moves between them without an
  // allocation that could fail.
  using Live = std::map<std::uintptr_t, Held>;
  using Kept = std::multimap<std::uintptr_t, Held>;
  using Node = Live::node_type;
  class Taken;
  class GivingBack;

  AclObject(const PackedAllocator& packed, Options options) : packed_(packed), options_(std::move(options)) {
    BeginForkGuard(this, ForkRank::kCache);
  }
  void BeforeFork() override { mutex_.lock(); }
  void AfterFork(bool in_child) override;

  void Return(void* block);
  Node FindKept(std::size_t nbytes, void* advised);  // under the mutex
  Node TakeLive(void* block);
  // A kept block, else a fresh one, for which others are waited for and kept ones given back where memory ran out.
  absl::StatusOr<Node> KeptOrFresh(std::size_t nbytes, void* advised, bool& reused);
  absl::StatusOr<Node> Fresh(std::size_t nbytes);
  absl::Status FreeBuffer(const Held& held) noexcept;
  void Keep(Node node);            // under the mutex
  void Uncount(const Held& held);  // of what is kept; under the mutex
  absl::Status FreeOrKeep(Node node) noexcept;
  // Keep, or after End, when the stream has been synchronised, free.
  void KeepOrFree(Node node) noexcept;
  void GiveBackIfIdle();
  void Failed(const absl::Status& status, std::uint64_t AclExportStats::*counter) noexcept;

  const PackedAllocator packed_;
  const Options options_;
  std::uint64_t number_ = 0;

  mutable std::mutex mutex_;
  Live live_;
  Kept kept_;
  AclExportStats stats_;  // counts as kept what is on its way out of live_ and kept_, too
  std::condition_variable given_back_;
  std::uint64_t times_given_back_ = 0;  // blocks
  std::uint64_t giving_back_ = 0;       // calls
  absl::Status last_error_;
  bool stopped_ = false;  // gives out no block
  bool ended_ = false;    // keeps none
};

}  // namespace packalloc::internal

#endif  // PACKALLOC_LIB_INTEROP_ACL_OBJECT_H_
