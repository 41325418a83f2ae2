#include "packalloc/buffer.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "lib/checks.h"
#include "lib/phase.h"
#include "packalloc/buffer_spec.h"
#include "packalloc/copy.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {
namespace {

std::uint64_t NewBufferId() {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

absl::Status EmptyBuffer() {
  return absl::FailedPreconditionError("the Buffer is empty (default-constructed or moved from)");
}

// Runs what may throw where nothing may leave; true if it did not.
template <typename F>
bool Contained(F&& f) noexcept {
  try {
    std::forward<F>(f)();
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

struct Buffer::State {
  // A buffer with memory of its own.
  State(PackedAllocator on, std::size_t size, const BufferSpec& wanted, std::function<void()> at_release)
      : allocator(std::move(on)), nbytes(size), spec(wanted), deleter(std::move(at_release)) {}
  // A view.
  State(std::shared_ptr<State> of, std::size_t size, std::size_t at)
      : allocator(of->allocator), nbytes(size), spec(of->spec), base(std::move(of)), offset(at) {}

  ~State() {
    if (base != nullptr) {
      if (phase.ready()) base->allocated_views.fetch_sub(1);
      return;
    }
    // Nobody is left to tell of an error. The memory's owner gets it back whatever the allocator says.
    if (phase.ready()) {
      if (deleter) Contained([this] { allocator.synchronize().IgnoreError(); });
      Contained([this] { allocator.free(handle, nbytes, spec).IgnoreError(); });
    }
    if (deleter) Contained(deleter);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  const State& root() const { return base != nullptr ? *base : *this; }

  absl::Status Allocate(bool already_is_error) {
    Phase::Change change(phase, Phase::kEmpty);
    if (change.nested()) return Nested("allocated");
    if (!change.claimed()) {
      return already_is_error ? absl::FailedPreconditionError("the Buffer is already allocated") : absl::OkStatus();
    }
    absl::Status done = base != nullptr ? TakeView() : TakeMemory();
    if (done.ok()) change.Finish(Phase::kReady);
    return done;
  }

  absl::Status Deallocate() {
    Phase::Change change(phase, Phase::kReady);
    if (change.nested()) return Nested("deallocated");
    if (!change.claimed())
      return absl::FailedPreconditionError("the Buffer is not allocated; there is nothing to free");
    if (base != nullptr) {
      handle = AnyBuf();
      base->allocated_views.fetch_sub(1);
      change.Finish(Phase::kEmpty);
      return absl::OkStatus();
    }
    if (const std::size_t views = allocated_views.load(); views != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the Buffer has ", views, " allocated views or tensors over it; deallocate or drop them first"));
    }
    if (deleter) {
      if (absl::Status idle = allocator.synchronize(); !idle.ok()) return idle;
    }
    if (absl::Status freed = allocator.free(handle, nbytes, spec); !freed.ok()) return freed;
    handle = AnyBuf();
    released = deleter != nullptr;
    const std::function<void()> owner_takes_back = std::exchange(deleter, nullptr);
    change.Finish(Phase::kEmpty);
    if (owner_takes_back) owner_takes_back();
    return absl::OkStatus();
  }

  const PackedAllocator allocator;
  const std::size_t nbytes;
  const BufferSpec spec;
  const std::shared_ptr<State> base;  // null: this is one
  const std::size_t offset = 0;       // in bytes from the base's start
  const std::uint64_t id = NewBufferId();

  Phase phase;
  AnyBuf handle;  // set while `phase` is ready
  std::atomic<std::uint64_t> generation{0};
  std::atomic<std::size_t> allocated_views{0};
  std::function<void()> deleter;  // of wrapped memory, until it has run
  bool released = false;          // the deleter has run: the memory is not ours any more

 private:
  static absl::Status Nested(const char* what) {
    return absl::FailedPreconditionError(
        absl::StrCat("the Buffer is being ", what, " by the call that this one was made from"));
  }

  absl::Status TakeMemory() {
    if (released) return absl::FailedPreconditionError("the wrapped memory was given back to its owner");
    absl::StatusOr<AnyBuf> memory = allocator.alloc(nbytes, spec);
    if (!memory.ok()) return std::move(memory).status();
    handle = *std::move(memory);
    generation.fetch_add(1);
    return absl::OkStatus();
  }

  absl::Status TakeView() {
    // Counted first, then looked: a Deallocate of the base on another thread either sees the view or is seen.
    struct Counted {
      std::atomic<std::size_t>& views;
      bool keep = false;
      explicit Counted(std::atomic<std::size_t>& count) : views(count) { views.fetch_add(1); }
      ~Counted() {
        if (!keep) views.fetch_sub(1);
      }
    };
    for (;;) {
      if (absl::Status ready = base->Allocate(false); !ready.ok()) return ready;
      Counted counted(base->allocated_views);
      if (!base->phase.ready()) continue;
      absl::StatusOr<AnyBuf> view = allocator.offset(base->handle, nbytes, offset);
      if (!view.ok()) return std::move(view).status();
      handle = *std::move(view);
      counted.keep = true;
      return absl::OkStatus();
    }
  }
};

Buffer::Buffer(PackedAllocator allocator, std::size_t nbytes, const BufferSpec& spec)
    : state_(std::make_shared<State>(std::move(allocator), nbytes, spec, nullptr)) {}

Buffer Buffer::Wrap(PackedAllocator allocator, void* data, std::size_t nbytes, std::function<void()> deleter,
                    BufferSpec spec) {
  spec.external_ptr = reinterpret_cast<std::uintptr_t>(data);
  return Buffer(std::make_shared<State>(std::move(allocator), nbytes, spec, std::move(deleter)));
}

std::size_t Buffer::nbytes() const { return state_ ? state_->nbytes : 0; }

const BufferSpec& Buffer::spec() const {
  static constexpr BufferSpec kDefault;
  return state_ ? state_->spec : kDefault;
}

const PackedAllocator& Buffer::allocator() const {
  static const PackedAllocator& none = *new PackedAllocator;
  return state_ ? state_->allocator : none;
}

std::uint64_t Buffer::id() const { return state_ ? state_->id : 0; }
std::uint64_t Buffer::base_id() const { return state_ ? state_->root().id : 0; }
Buffer Buffer::base() const { return state_ && state_->base ? Buffer(state_->base) : *this; }
std::size_t Buffer::offset() const { return state_ ? state_->offset : 0; }
bool Buffer::is_allocated() const { return state_ && state_->root().phase.ready(); }
bool Buffer::is_initialized() const { return state_ && state_->phase.ready(); }
std::uint64_t Buffer::generation() const { return state_ ? state_->root().generation.load() : 0; }

bool Buffer::supports_transfer(const Buffer& other) const {
  return allocator().supports_transfer() && allocator().same_transfer_domain(other.allocator());
}

absl::Status Buffer::Allocate() const { return state_ ? state_->Allocate(true) : EmptyBuffer(); }

absl::Status Buffer::EnsureAllocated() const {
  if (!state_) return EmptyBuffer();
  return state_->phase.ready() ? absl::OkStatus() : state_->Allocate(false);
}

absl::Status Buffer::Deallocate() const { return state_ ? state_->Deallocate() : EmptyBuffer(); }

absl::StatusOr<Buffer> Buffer::View(std::size_t nbytes, std::size_t byte_offset) const {
  if (!state_) return EmptyBuffer();
  if (absl::Status fits = CheckView(device(), nbytes, byte_offset, state_->nbytes); !fits.ok()) return fits;
  if (!supports_offset()) return absl::UnimplementedError(absl::StrCat(device(), " has no offset, so no views"));
  return Buffer(std::make_shared<State>(base().state_, nbytes, state_->offset + byte_offset));
}

absl::Status Buffer::CopyIn(absl::Span<const std::byte> src) const {
  if (absl::Status ready = EnsureAllocated(); !ready.ok()) return ready;
  return state_->allocator.copyin(state_->handle, src);
}

absl::Status Buffer::CopyOut(absl::Span<std::byte> dest) const {
  if (absl::Status ready = EnsureAllocated(); !ready.ok()) return ready;
  return state_->allocator.copyout(dest, state_->handle);
}

absl::StatusOr<BufferRef> Buffer::ref() const {
  absl::StatusOr<AnyBuf> buffer = handle();
  if (!buffer.ok()) return buffer.status();
  return BufferRef{allocator(), *std::move(buffer)};
}

absl::StatusOr<CopyReport> Buffer::CopyFrom(const Buffer& src, const CopyOptions& options) const {
  absl::StatusOr<BufferRef> from = src.ref();
  if (!from.ok()) return from.status();
  absl::StatusOr<BufferRef> to = ref();
  if (!to.ok()) return to.status();
  return Copy(*to, *from, options);
}

absl::StatusOr<DeviceAddress> Buffer::addr() const {
  if (absl::Status ready = EnsureAllocated(); !ready.ok()) return ready;
  return state_->allocator.addr(state_->handle);
}

absl::StatusOr<std::byte*> Buffer::host_ptr() const {
  if (absl::Status ready = EnsureAllocated(); !ready.ok()) return ready;
  return state_->allocator.host_ptr(state_->handle);
}

absl::StatusOr<AnyBuf> Buffer::handle() const {
  if (absl::Status ready = EnsureAllocated(); !ready.ok()) return ready;
  return state_->handle;
}

}  // namespace packalloc
