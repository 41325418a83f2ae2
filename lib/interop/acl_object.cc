#include "lib/interop/acl_object.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/c/handle_table.h"
#include "lib/c/handles.h"

namespace packalloc::internal {
namespace {

struct BlockEntry {
  std::shared_ptr<AclObject> owner;
  void* address;
};

// Never destroyed: the runtime may call back while the program exits.
HandleTable<std::shared_ptr<AclObject>>& Objects() {
  static auto& table = *new HandleTable<std::shared_ptr<AclObject>>(3, "allocator object");
  return table;
}
HandleTable<BlockEntry>& Blocks() {
  static auto& table = *new HandleTable<BlockEntry>(4, "block");
  return table;
}

// What `body` threw, as a status.
template <typename Body>
absl::Status Caught(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("host memory ran out (std::bad_alloc)");
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("an exception left the allocator: ", error.what()));
  } catch (...) {
    return absl::InternalError("an exception that is no std::exception left the allocator");
  }
}

// Calls that this thread is inside of, with any object.
constinit thread_local std::uint64_t own_giving_back = 0;

}  // namespace

// Blocks are perhaps about to be given back: an allocation on another thread that finds none waits for the end of it.
class AclObject::GivingBack {
 public:
  explicit GivingBack(AclObject& object) : object_(object) {
    const std::lock_guard lock(object_.mutex_);
    ++object_.giving_back_;
    ++own_giving_back;
  }
  GivingBack(const GivingBack&) = delete;
  GivingBack& operator=(const GivingBack&) = delete;
  ~GivingBack() {
    --own_giving_back;
    const std::lock_guard lock(object_.mutex_);
    if (object_.giving_back_ > 0) --object_.giving_back_;  // 0: begun before the fork that made this process
    object_.given_back_.notify_all();
  }

 private:
  AclObject& object_;
};

// A block between two owners: goes back to where it was unless it arrives.
class AclObject::Taken {
 public:
  Taken(AclObject& object, Node node, bool was_kept) : object_(object), node_(std::move(node)), was_kept_(was_kept) {}
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;
  ~Taken() {
    if (node_.empty()) return;
    if (was_kept_) {
      object_.KeepOrFree(std::move(node_));
    } else {
      object_.FreeBuffer(node_.mapped()).IgnoreError();
    }
  }
  Held& held() { return node_.mapped(); }
  Node Arrive() { return std::move(node_); }

 private:
  AclObject& object_;
  Node node_;
  const bool was_kept_;
};

absl::StatusOr<std::shared_ptr<AclObject>> AclObject::Make(const PackedAllocator& packed, Options options) {
  if (!packed) return absl::FailedPreconditionError("an empty PackedAllocator cannot be exported");
  if (absl::Status valid = ValidateSpec(options.spec); !valid.ok()) return valid;
  if (options.spec.zero || options.spec.external_ptr.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("blocks for Ascend cannot be had with the spec ", ToString(options.spec),
                     ": zeroing works on the device, and external_ptr is one place only"));
  }
  std::shared_ptr<AclObject> object(new AclObject(packed, std::move(options)));
  absl::StatusOr<std::uint64_t> number = Objects().Add(std::shared_ptr<AclObject>(object));
  if (!number.ok()) return number.status();
  object->number_ = *number;
  return object;
}

void AclObject::AfterFork(bool in_child) {
  if (in_child) {
    giving_back_ = 0;                              // those who were at it do not exist here
    ::new (&given_back_) std::condition_variable;  // nor do those who waited
  }
  mutex_.unlock();
}

AclCallbacks AclObject::callbacks() const {
  return {HandleOf<void>(number_), &Alloc, &AllocAdvise, &Free, &GetAddrFromBlock};
}

AclExportStats AclObject::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

absl::Status AclObject::last_error() const {
  const std::lock_guard lock(mutex_);
  return last_error_;
}

void AclObject::Failed(const absl::Status& status, std::uint64_t AclExportStats::*counter) noexcept {
  const std::lock_guard lock(mutex_);
  ++(stats_.*counter);
  last_error_ = status;
}

absl::Status AclObject::FreeBuffer(const Held& held) noexcept {
  return Caught([&] { return packed_.free(held.buffer, held.capacity, options_.spec); });
}

void AclObject::Keep(Node node) {
  node.key() = node.mapped().capacity;
  kept_.insert(std::move(node));
}

void AclObject::Uncount(const Held& held) {
  stats_.kept_bytes -= held.capacity;
  --stats_.kept_blocks;
}

absl::Status AclObject::FreeOrKeep(Node node) noexcept {
  absl::Status freed = FreeBuffer(node.mapped());
  if (!freed.ok()) Failed(freed, &AclExportStats::failed_frees);
  const std::lock_guard lock(mutex_);
  if (freed.ok()) {
    Uncount(node.mapped());
    ++times_given_back_;
    given_back_.notify_all();
  } else {
    Keep(std::move(node));
  }
  return freed;
}

void AclObject::KeepOrFree(Node node) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) return Keep(std::move(node));
  }
  FreeOrKeep(std::move(node)).IgnoreError();
}

// The block at `advised` if one of sufficient size is kept there, else the smallest that wastes at most an eighth, the
// last that was freed of several.
AclObject::Node AclObject::FindKept(std::size_t nbytes, void* advised) {
  const auto first = kept_.lower_bound(nbytes);
  auto found = kept_.end();
  if (advised != nullptr) {
    found = std::find_if(first, kept_.end(), [advised](const auto& kept) { return kept.second.address == advised; });
  }
  if (found == kept_.end() && first != kept_.end() && first->first - nbytes <= std::max<std::size_t>(nbytes / 8, 511)) {
    found = std::prev(kept_.upper_bound(first->first));
  }
  return found == kept_.end() ? Node() : kept_.extract(found);
}

absl::StatusOr<AclObject::Node> AclObject::Fresh(std::size_t nbytes) {
  Live one;
  one.try_emplace(0);
  Node node = one.extract(one.begin());
  absl::StatusOr<AnyBuf> buffer = packed_.alloc(nbytes, options_.spec);
  if (!buffer.ok()) return buffer.status();
  node.mapped().buffer = *std::move(buffer);
  node.mapped().capacity = nbytes;
  Taken taken(*this, std::move(node), false);
  absl::StatusOr<DeviceAddress> address = packed_.addr(taken.held().buffer);
  if (!address.ok()) return address.status();
  if (address->value == 0 || address->byte_offset != 0) {
    return absl::InternalError(absl::StrCat(packed_.name(), " gave a buffer of ", nbytes, " bytes at byte ",
                                            address->byte_offset, " of 0x", absl::Hex(address->value),
                                            ", which is no address that a block can have"));
  }
  taken.held().address = reinterpret_cast<void*>(address->value);
  return taken.Arrive();
}

void AclObject::GiveBackIfIdle() {
  if (!options_.idle) return;
  GiveBack([this] { return options_.idle() ? absl::OkStatus() : absl::UnavailableError("busy"); }).IgnoreError();
}

absl::StatusOr<AclObject::Node> AclObject::KeptOrFresh(std::size_t nbytes, void* advised, bool& reused) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stopped_) return absl::FailedPreconditionError("the allocator is no longer registered");
    Node kept = FindKept(nbytes, advised);
    reused = !kept.empty();
    if (reused) return kept;
    const std::uint64_t seen = times_given_back_;
    lock.unlock();
    absl::StatusOr<Node> fresh = Fresh(nbytes);
    if (!absl::IsResourceExhausted(fresh.status())) return fresh;
    GiveBackIfIdle();
    lock.lock();
    if (own_giving_back == 0) {
      given_back_.wait(lock, [&] { return times_given_back_ != seen || giving_back_ == 0; });
    }
    if (times_given_back_ != seen || stopped_) continue;
    kept = FindKept(nbytes, advised);  // another thread may have tried in vain to give that one back
    reused = !kept.empty();
    if (reused) return kept;
    if (stats_.kept_bytes == 0) return fresh;
    return absl::ResourceExhaustedError(
        absl::StrCat(fresh.status().message(), "; ", stats_.kept_bytes,
                     " bytes that were freed wait for the stream to be synchronised (AclRegistration::Trim)"));
  }
}

absl::StatusOr<void*> AclObject::Take(std::size_t nbytes, void* advised) {
  nbytes = std::max<std::size_t>(nbytes, 1);
  void* block = nullptr;
  absl::Status taken = Caught([&]() -> absl::Status {
    bool reused = false;
    absl::StatusOr<Node> node = KeptOrFresh(nbytes, advised, reused);
    if (!node.ok()) return node.status();
    Taken on_its_way(*this, *std::move(node), reused);
    Held& held = on_its_way.held();
    absl::StatusOr<std::uint64_t> number = Blocks().Add(BlockEntry{shared_from_this(), held.address});
    if (!number.ok()) return number.status();
    const auto key = reinterpret_cast<std::uintptr_t>(held.address);
    bool stopped = false;
    {
      const std::lock_guard lock(mutex_);
      stopped = stopped_;
      if (!stopped && live_.count(key) == 0) {
        held.number = *number;
        held.nbytes = nbytes;
        ++stats_.allocs;
        if (reused) {
          ++stats_.reused;
          Uncount(held);
        }
        if (advised != nullptr && held.address == advised) ++stats_.advised;
        stats_.live_bytes += held.capacity;
        ++stats_.live_blocks;
        block = HandleOf<void>(*number);
        Node arriving = on_its_way.Arrive();
        arriving.key() = key;
        live_.insert(std::move(arriving));
        return absl::OkStatus();
      }
    }
    Blocks().Close(*number).IgnoreError();
    if (stopped) return absl::FailedPreconditionError("the allocator is no longer registered");
    return absl::InternalError(absl::StrCat(packed_.name(), " gave two live buffers the address 0x", absl::Hex(key)));
  });
  if (taken.ok()) return block;
  Failed(taken, &AclExportStats::failed_allocs);
  return taken;
}

// Takes a live block out, from then on counted as kept; an empty node for what is none.
AclObject::Node AclObject::TakeLive(void* block) {
  const auto key = reinterpret_cast<std::uintptr_t>(GetAddrFromBlock(block));
  Node node;
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(key);
  if (found == live_.end() || found->second.number != NumberOf(block)) return node;
  node = live_.extract(found);
  ++stats_.frees;
  stats_.live_bytes -= node.mapped().capacity;
  --stats_.live_blocks;
  stats_.kept_bytes += node.mapped().capacity;
  ++stats_.kept_blocks;
  return node;
}

void AclObject::Return(void* block) {
  std::optional<GivingBack> giving_back;
  if (options_.free_at_once) giving_back.emplace(*this);
  Node node = TakeLive(block);
  if (node.empty()) {
    Failed(absl::InvalidArgumentError("free of what is no live block of this allocator"),
           &AclExportStats::failed_frees);
    return;
  }
  Blocks().Close(NumberOf(block)).IgnoreError();
  if (options_.free_at_once) {
    FreeOrKeep(std::move(node)).IgnoreError();
    return;
  }
  KeepOrFree(std::move(node));
  if (stats().kept_bytes <= options_.max_kept_bytes) return;
  Caught([this] {
    GiveBackIfIdle();
    return absl::OkStatus();
  }).IgnoreError();
}

absl::Status AclObject::GiveBack(const std::function<absl::Status()>& done) {
  const GivingBack giving_back(*this);
  // What is to go is set aside before `done` is asked: what is freed later may belong to later work.
  struct Aside {
    AclObject& object;
    Kept blocks{};
    ~Aside() {
      while (!blocks.empty()) object.KeepOrFree(blocks.extract(blocks.begin()));
    }
  } aside{*this};
  {
    const std::lock_guard lock(mutex_);
    aside.blocks.swap(kept_);
  }
  if (aside.blocks.empty()) return absl::OkStatus();
  if (absl::Status status = done(); !status.ok()) return status;
  absl::Status first;
  while (!aside.blocks.empty()) first.Update(FreeOrKeep(aside.blocks.extract(aside.blocks.begin())));
  return first;
}

void AclObject::Stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
}

absl::Status AclObject::End() {
  Live live;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = ended_ = true;
    live.swap(live_);
    stats_.kept_bytes += std::exchange(stats_.live_bytes, 0);
    stats_.kept_blocks += std::exchange(stats_.live_blocks, 0);
  }
  Objects().Close(number_).IgnoreError();
  absl::Status first = GiveBack([] { return absl::OkStatus(); });
  while (!live.empty()) {
    Blocks().Close(live.begin()->second.number).IgnoreError();
    first.Update(FreeOrKeep(live.extract(live.begin())));
  }
  return first;
}

void AclObject::EndIfUnused() {
  {
    const std::lock_guard lock(mutex_);
    if (stats_.live_blocks + stats_.kept_blocks != 0) return;
    stopped_ = ended_ = true;
  }
  Objects().Close(number_).IgnoreError();
}

std::optional<AclObject::Place> AclObject::Locate(const void* address) const {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(mutex_);
  auto found = live_.upper_bound(value);
  if (found == live_.begin()) return std::nullopt;
  --found;
  const std::size_t offset = value - found->first;
  if (offset >= found->second.nbytes) return std::nullopt;
  if (offset != 0 && !packed_.traits().address_is_pointer) return std::nullopt;  // nobody adds to a handle
  return Place{packed_, found->second.buffer, offset, found->second.nbytes};
}

std::optional<AnyBuf> AclObject::BufferOf(void* block, const PackedAllocator& allocator) {
  const auto pin = Blocks().Find(NumberOf(block));
  if (!pin.ok() || (*pin)->owner->packed_ != allocator) return std::nullopt;
  std::optional<Place> place = (*pin)->owner->Locate((*pin)->address);
  if (!place) return std::nullopt;
  return std::move(place->buffer);
}

std::optional<bool> AclObject::AddressIsPointer(const AclCallbacks& callbacks) {
  if (callbacks.alloc != &Alloc) return std::nullopt;
  const absl::StatusOr<std::shared_ptr<AclObject>> found = Find(callbacks.object);
  if (!found.ok()) return std::nullopt;
  return (*found)->packed_.traits().address_is_pointer;
}

absl::StatusOr<std::shared_ptr<AclObject>> AclObject::Find(void* object) {
  const auto pin = Objects().Find(NumberOf(object));
  if (!pin.ok()) return pin.status();
  return **pin;
}

void* AclObject::Alloc(void* object, std::size_t nbytes) noexcept { return AllocAdvise(object, nbytes, nullptr); }

void* AclObject::AllocAdvise(void* object, std::size_t nbytes, void* address) noexcept {
  const absl::StatusOr<std::shared_ptr<AclObject>> found = Find(object);
  return found.ok() ? (*found)->Take(nbytes, address).value_or(nullptr) : nullptr;
}

void AclObject::Free(void* object, void* block) noexcept {
  if (const absl::StatusOr<std::shared_ptr<AclObject>> found = Find(object); found.ok()) (*found)->Return(block);
}

void* AclObject::GetAddrFromBlock(void* block) noexcept {
  const auto pin = Blocks().Find(NumberOf(block));
  return pin.ok() ? (*pin)->address : nullptr;
}

}  // namespace packalloc::internal
