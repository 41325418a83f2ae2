#include "packalloc/tensor/tensor_pool.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/checked_math.h"
#include "lib/tensor/tensor_backing.h"

namespace packalloc {
namespace {

using internal::BackingShare;
using internal::TensorBacking;

using AllocBacking = std::function<absl::StatusOr<Buffer>(std::size_t, std::size_t, DlDevice)>;

absl::Status CheckScope(std::string_view mem_scope) {
  if (mem_scope == "global" || mem_scope.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a TensorPool has memory of scope \"global\" only, not \"", std::string(mem_scope), "\""));
}

// The pools whose alloc_backing this thread is in, innermost first.
struct Allocating {
  explicit Allocating(const void* of);
  ~Allocating();
  Allocating(const Allocating&) = delete;
  Allocating& operator=(const Allocating&) = delete;

  const void* const pool;
  const Allocating* const outer;
};
constinit thread_local const Allocating* innermost = nullptr;

Allocating::Allocating(const void* of) : pool(of), outer(std::exchange(innermost, this)) {}
Allocating::~Allocating() { innermost = outer; }

bool IsAllocating(const void* pool) {
  for (const Allocating* at = innermost; at != nullptr; at = at->outer) {
    if (at->pool == pool) return true;
  }
  return false;
}

absl::StatusOr<std::unique_ptr<TensorBacking>> Fresh(const AllocBacking& alloc_backing, std::size_t nbytes,
                                                     std::size_t alignment, DlDevice device) {
  absl::StatusOr<Buffer> buffer = alloc_backing(nbytes, alignment, device);
  if (!buffer.ok()) return buffer.status();
  if (buffer->nbytes() < nbytes) {
    return absl::InternalError(
        absl::StrCat("alloc_backing was asked for ", nbytes, " bytes and gave ", buffer->nbytes()));
  }
  absl::StatusOr<std::unique_ptr<TensorBacking>> backing = internal::NewBacking(*std::move(buffer));
  if (backing.ok() && (*backing)->address_is_pointer && (*backing)->address.value % alignment != 0) {
    return absl::InternalError(
        absl::StrCat("alloc_backing gave memory that is not aligned to the ", alignment, " bytes it was asked for"));
  }
  return backing;
}

// A cache of backings: an Lru over a record whose handles they are. The spec's alignment 0 stands for `alignment`.
absl::StatusOr<AnyRecord> BackingCache(const TensorPoolDevice& device, const TensorPoolOptions& options,
                                       std::shared_ptr<const AllocBacking> alloc_backing, const void* pool) {
  Allocator<TensorBacking*> record;
  const AllocatorTraits& traits = device.allocator.traits();
  record.traits.name = absl::StrCat("the tensor pool of ", traits.name);
  record.traits.memory_domain = traits.memory_domain;
  record.traits.max_alloc_bytes = traits.max_alloc_bytes;
  record.traits.address_is_pointer = traits.address_is_pointer;
  record.alloc = [alloc_backing = std::move(alloc_backing), alignment = options.alignment, dl = device.device, pool](
                     std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<TensorBacking*> {
    const Allocating allocating(pool);
    absl::StatusOr<std::unique_ptr<TensorBacking>> backing =
        Fresh(*alloc_backing, nbytes, spec.alignment == 0 ? alignment : spec.alignment, dl);
    if (!backing.ok()) return backing.status();
    return backing->release();
  };
  record.free = [](TensorBacking* const& backing, std::size_t, const BufferSpec&) {
    delete backing;
    return absl::OkStatus();
  };
  record.addr = [](TensorBacking* const& backing) { return backing->address; };
  const auto no_copies = [] { return absl::UnimplementedError("a tensor pool's cache copies nothing"); };
  record.copyin = [no_copies](TensorBacking* const&, absl::Span<const std::byte>) { return no_copies(); };
  record.copyout = [no_copies](absl::Span<std::byte>, TensorBacking* const&) { return no_copies(); };
  record.synchronize = [allocator = device.allocator] { return allocator.synchronize(); };
  return LruLayer(Erase(std::make_shared<const Allocator<TensorBacking*>>(std::move(record))),
                  {.max_bytes = options.max_cached_bytes, .policy = options.policy});
}

}  // namespace

class TensorPool::State final : public internal::BackingHome, public std::enable_shared_from_this<State> {
 public:
  static absl::StatusOr<std::shared_ptr<State>> Make(std::vector<TensorPoolDevice> devices,
                                                     const TensorPoolOptions& options) {
    auto state = std::make_shared<State>();
    state->page_size_ = options.page_size;
    state->alignment_ = options.alignment;
    const auto all = std::make_shared<const std::vector<TensorPoolDevice>>(std::move(devices));
    state->own_alloc_backing_ = [all](std::size_t nbytes, std::size_t alignment, DlDevice device) {
      return AllocOn(*all, nbytes, alignment, device);
    };
    auto alloc_backing = state->own_alloc_backing_;
    if (options.replace) {
      TensorPoolFunctions used = options.replace(state->OwnFunctions());
      if (!used.empty || !used.create_view || !used.alloc_backing) {
        return absl::InvalidArgumentError("TensorPoolOptions::replace left a function unset");
      }
      alloc_backing = std::move(used.alloc_backing);
      state->empty_ = std::move(used.empty);
      state->create_view_ = std::move(used.create_view);
    }
    const auto shared_alloc = std::make_shared<const AllocBacking>(std::move(alloc_backing));
    for (const TensorPoolDevice& device : *all) {
      absl::StatusOr<AnyRecord> cache = BackingCache(device, options, shared_alloc, state.get());
      if (!cache.ok()) return cache.status();
      std::shared_ptr<LruControl> control = Find<LruControl>(*cache);
      state->devices_.push_back({device.device, *std::move(cache), std::move(control)});
    }
    state->made_.store(true, std::memory_order_release);
    return state;
  }

  // What a call of the pool does: the replacement where there is one.
  static absl::StatusOr<Tensor> CallEmpty(const std::shared_ptr<State>& self, absl::Span<const std::int64_t> shape,
                                          DataType dtype, const std::optional<DlDevice>& device,
                                          std::string_view mem_scope) {
    const DlDevice on = device ? *device : self->devices_.front().device;
    return self->empty_ ? self->empty_(shape, dtype, on, mem_scope) : Empty(self, shape, dtype, on, mem_scope);
  }
  absl::StatusOr<Tensor> CallCreateView(const Tensor& backing, absl::Span<const std::int64_t> shape, DataType dtype,
                                        std::size_t byte_offset, std::string_view mem_scope) {
    return create_view_ ? create_view_(backing, shape, dtype, byte_offset, mem_scope)
                        : CreateView(backing, shape, dtype, byte_offset, mem_scope);
  }

  absl::Status Clear() {
    absl::Status first;
    for (const Device& device : devices_) first.Update(device.control->Clear());
    return first;
  }

  std::size_t UsedMemory() const {
    std::size_t sum = 0;
    for (const Device& device : devices_) {
      const LruStats stats = device.control->stats();
      sum += stats.cached_bytes + stats.in_use_bytes;
    }
    return sum;
  }

  std::shared_ptr<LruControl> Cache(const std::optional<DlDevice>& device) const {
    for (const Device& have : devices_) {
      if (!device || have.device == *device) return have.control;
    }
    return nullptr;
  }

  std::size_t page_size() const { return page_size_; }

  void TakeBack(TensorBacking* backing) noexcept override {
    const std::size_t nbytes = backing->pooled_bytes;
    const BufferSpec spec{.alignment = backing->pooled_alignment};
    const AnyRecord& cache = devices_[backing->device_index].cache;
    try {
      cache.free(AnyBuf(std::in_place_type<TensorBacking*>, backing, nbytes), nbytes, spec).IgnoreError();
    } catch (...) {
      // Only where the cache found no memory to note it: the backing is lost to the pool, and nobody can be told.
    }
  }

 private:
  struct Device {
    DlDevice device;
    AnyRecord cache;  // its handles are TensorBacking*
    std::shared_ptr<LruControl> control;
  };

  static absl::StatusOr<Buffer> AllocOn(const std::vector<TensorPoolDevice>& all, std::size_t nbytes,
                                        std::size_t alignment, DlDevice device) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const TensorPoolDevice& have) { return have.device == device; });
    if (found == all.end()) {
      return absl::InvalidArgumentError(absl::StrCat("the pool has no device ", ToString(device)));
    }
    const AllocatorTraits& traits = found->allocator.traits();
    // An opaque handle has no address to align; what its device promises is what there is.
    if (!traits.address_is_pointer) alignment = std::min(alignment, traits.min_alignment);
    const Buffer buffer(found->allocator, nbytes, {.alignment = alignment});
    absl::Status ready = buffer.Allocate();
    if (absl::IsInvalidArgument(ready) && alignment > traits.min_alignment) {
      return absl::InvalidArgumentError(
          absl::StrCat("the tensor pool asks for alignment ", alignment,
                       " (TensorPoolOptions::alignment, or an element's own): ", ready.message()));
    }
    if (!ready.ok()) return ready;
    return buffer;
  }

  TensorPoolFunctions OwnFunctions() {
    const auto gone = [] { return absl::FailedPreconditionError("the TensorPool is gone"); };
    TensorPoolFunctions own;
    own.empty = [weak = weak_from_this(), gone](absl::Span<const std::int64_t> shape, DataType dtype, DlDevice device,
                                                std::string_view mem_scope) -> absl::StatusOr<Tensor> {
      const std::shared_ptr<State> state = weak.lock();
      if (!state) return gone();
      if (!state->made_.load(std::memory_order_acquire)) {
        return absl::FailedPreconditionError(
            "the TensorPool is still being made: it has tensors once Make has returned");
      }
      return Empty(state, shape, dtype, device, mem_scope);
    };
    own.create_view = [](const Tensor& backing, absl::Span<const std::int64_t> shape, DataType dtype,
                         std::size_t byte_offset, std::string_view mem_scope) {
      return CreateView(backing, shape, dtype, byte_offset, mem_scope);
    };
    own.alloc_backing = own_alloc_backing_;
    return own;
  }

  absl::Status NoSuchDevice(DlDevice device) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "the pool has no device ", ToString(device), ", only ",
        absl::StrJoin(devices_, ", ", [](std::string* out, const Device& d) { *out += ToString(d.device); })));
  }

  std::size_t IndexOf(DlDevice device) const {
    std::size_t index = 0;
    while (index < devices_.size() && !(devices_[index].device == device)) ++index;
    return index;
  }

  static absl::StatusOr<Tensor> Empty(const std::shared_ptr<State>& self, absl::Span<const std::int64_t> shape,
                                      DataType dtype, DlDevice device, std::string_view mem_scope) {
    // One result, returned by name on every path: a second one would be moved.
    absl::StatusOr<Tensor> tensor = TensorAccess::Describe(shape, dtype, device);
    if (!tensor.ok()) return tensor;
    const std::size_t index = self->IndexOf(device);
    absl::Status problem = CheckScope(mem_scope);
    if (index == self->devices_.size()) problem.Update(self->NoSuchDevice(device));
    if (problem.ok() && tensor->nbytes() != 0) problem = self->TakeMemory(*tensor, index, self);
    if (!problem.ok()) tensor = std::move(problem);
    return tensor;
  }

  absl::Status TakeMemory(Tensor& tensor, std::size_t index, const std::shared_ptr<State>& self) {
    // Cannot wrap: nbytes is at most PTRDIFF_MAX and the page size a power of two.
    const std::size_t rounded = (tensor.nbytes() + page_size_ - 1) & ~(page_size_ - 1);
    const std::size_t element_bytes = (std::size_t{tensor.dtype().bits} * tensor.dtype().lanes + 7) / 8;
    BufferSpec spec;
    if (element_bytes > alignment_) spec.alignment = std::min(std::bit_ceil(element_bytes), kMaxAlignment);
    if (innermost != nullptr && IsAllocating(this)) {
      const std::size_t alignment = spec.alignment == 0 ? alignment_ : spec.alignment;
      absl::StatusOr<std::unique_ptr<TensorBacking>> unpooled =
          Fresh(own_alloc_backing_, rounded, alignment, tensor.device());
      if (!unpooled.ok()) return unpooled.status();
      TensorAccess::Place(tensor, BackingShare(unpooled->release()), 0, rounded);
      return absl::OkStatus();
    }
    absl::StatusOr<AnyBuf> lease = devices_[index].cache.alloc(rounded, spec);
    if (!lease.ok()) return std::move(lease).status();
    TensorBacking* const backing = *lease->get<TensorBacking*>();
    backing->users.store(1, std::memory_order_relaxed);
    backing->pooled_bytes = rounded;
    backing->pooled_alignment = spec.alignment;
    backing->device_index = static_cast<std::uint32_t>(index);
    backing->home = self;
    TensorAccess::Place(tensor, BackingShare(backing), 0, rounded);
    return absl::OkStatus();
  }

  static absl::StatusOr<Tensor> CreateView(const Tensor& backing, absl::Span<const std::int64_t> shape, DataType dtype,
                                           std::size_t byte_offset, std::string_view mem_scope) {
    if (absl::Status known = CheckScope(mem_scope); !known.ok()) return known;
    return backing.View(shape, dtype, byte_offset);
  }

  std::size_t page_size_ = 0;
  std::size_t alignment_ = 0;
  std::vector<Device> devices_;
  std::atomic<bool> made_{false};  // devices_ does not change any more
  AllocBacking own_alloc_backing_;
  decltype(TensorPoolFunctions::empty) empty_;              // null: the pool's own
  decltype(TensorPoolFunctions::create_view) create_view_;  // null: the pool's own
};

namespace {
absl::Status EmptyPool() { return absl::FailedPreconditionError("the TensorPool is empty (default-constructed)"); }
}  // namespace

absl::StatusOr<TensorPool> TensorPool::Make(const PackedAllocator& allocator, const TensorPoolOptions& options) {
  const absl::StatusOr<DlDevice> device = DlDeviceOf(allocator);
  if (!device.ok()) return device.status();
  return Make({{*device, allocator}}, options);
}

absl::StatusOr<TensorPool> TensorPool::Make(std::vector<TensorPoolDevice> devices, const TensorPoolOptions& options) {
  if (!IsPowerOfTwo(options.page_size) || options.page_size > kMaxAlignment) {
    return absl::InvalidArgumentError(absl::StrCat("the page size of a TensorPool is a power of two up to ",
                                                   kMaxAlignment, ", not ", options.page_size));
  }
  if (!IsPowerOfTwo(options.alignment) || options.alignment > kMaxAlignment) {
    return absl::InvalidArgumentError(absl::StrCat("the alignment of a TensorPool is a power of two up to ",
                                                   kMaxAlignment, ", not ", options.alignment));
  }
  if (devices.empty()) return absl::InvalidArgumentError("a TensorPool needs at least one device");
  for (auto it = devices.begin(); it != devices.end(); ++it) {
    if (!it->allocator) return absl::InvalidArgumentError("a TensorPool was given an empty PackedAllocator");
    if (std::any_of(devices.begin(), it, [&](const TensorPoolDevice& have) { return have.device == it->device; })) {
      return absl::InvalidArgumentError(absl::StrCat("a TensorPool was given ", ToString(it->device), " twice"));
    }
  }
  absl::StatusOr<std::shared_ptr<State>> state = State::Make(std::move(devices), options);
  if (!state.ok()) return state.status();
  TensorPool pool;
  pool.state_ = *std::move(state);
  return pool;
}

absl::StatusOr<Tensor> TensorPool::Empty(absl::Span<const std::int64_t> shape, DataType dtype,
                                         std::optional<DlDevice> device, std::string_view mem_scope) const {
  if (!state_) return EmptyPool();
  return State::CallEmpty(state_, shape, dtype, device, mem_scope);
}

absl::StatusOr<Tensor> TensorPool::CreateView(const Tensor& backing, absl::Span<const std::int64_t> shape,
                                              DataType dtype, std::size_t byte_offset,
                                              std::string_view mem_scope) const {
  if (!state_) return EmptyPool();
  return state_->CallCreateView(backing, shape, dtype, byte_offset, mem_scope);
}

absl::Status TensorPool::Clear() const { return state_ ? state_->Clear() : EmptyPool(); }
std::size_t TensorPool::UsedMemory() const { return state_ ? state_->UsedMemory() : 0; }
std::shared_ptr<LruControl> TensorPool::cache(std::optional<DlDevice> device) const {
  return state_ ? state_->Cache(device) : nullptr;
}
std::size_t TensorPool::page_size() const { return state_ ? state_->page_size() : 0; }

}  // namespace packalloc
