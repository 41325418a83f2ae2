#include "packalloc/tensor/tensor_pool.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/checked_math.h"
#include "lib/layers/lru_cache.h"
#include "lib/tensor/tensor_backing.h"

namespace packalloc {
namespace {

using internal::BackingShare;
using internal::TensorBacking;

using AllocBacking = std::function<absl::StatusOr<Buffer>(std::size_t, std::size_t, DlDevice)>;

bool IsGlobal(std::string_view mem_scope) { return mem_scope == "global" || mem_scope.empty(); }

absl::Status NotGlobal(std::string_view mem_scope) {
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
// Of all threads, for a hit to ask first: a thread's own variable takes a call where the library is a shared one.
constinit std::atomic<int> allocating{0};

Allocating::Allocating(const void* of) : pool(of), outer(std::exchange(innermost, this)) {
  allocating.fetch_add(1, std::memory_order_relaxed);
}
Allocating::~Allocating() {
  innermost = outer;
  allocating.fetch_sub(1, std::memory_order_relaxed);
}

bool IsAllocating(const void* pool) {
  if (allocating.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
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

// A cache of backings. The spec's alignment 0 stands for the pool's.
std::shared_ptr<LruCache> BackingCache(const TensorPoolDevice& device, const TensorPoolOptions& options,
                                       std::shared_ptr<const AllocBacking> alloc_backing, const void* pool) {
  Allocator<TensorBacking*> record;
  const AllocatorTraits& traits = device.allocator.traits();
  record.traits.name = absl::StrCat("the tensor pool of ", traits.name);
  record.traits.memory_domain = traits.memory_domain;
  record.traits.max_alloc_bytes = traits.max_alloc_bytes;
  record.alloc = [alloc_backing = std::move(alloc_backing), alignment = options.alignment, dl = device.device, pool](
                     std::size_t nbytes, const BufferSpec& spec) -> absl::StatusOr<TensorBacking*> {
    const Allocating inside(pool);
    absl::StatusOr<std::unique_ptr<TensorBacking>> backing =
        Fresh(*alloc_backing, nbytes, spec.alignment == 0 ? alignment : spec.alignment, dl);
    if (!backing.ok()) return backing.status();
    return backing->release();
  };
  record.free = [](TensorBacking* const& backing, std::size_t, const BufferSpec&) {
    delete backing;
    return absl::OkStatus();
  };
  record.synchronize = [allocator = device.allocator] { return allocator.synchronize(); };
  return LruCache::Make(Erase(std::make_shared<const Allocator<TensorBacking*>>(std::move(record))),
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
      state->devices_.push_back({device.device, BackingCache(device, options, shared_alloc, state.get())});
    }
    state->made_.store(true, std::memory_order_release);
    return state;
  }

  // What a call of the pool does: the replacement where there is one.
  absl::StatusOr<Tensor> CallEmpty(absl::Span<const std::int64_t> shape, DataType dtype,
                                   const std::optional<DlDevice>& device, const std::string_view& mem_scope) {
    const DlDevice on = device ? *device : devices_.front().device;
    return empty_ ? empty_(shape, dtype, on, mem_scope) : Empty(shape, dtype, on, mem_scope);
  }
  absl::StatusOr<Tensor> CallCreateView(const Tensor& backing, absl::Span<const std::int64_t> shape, DataType dtype,
                                        std::size_t byte_offset, std::string_view mem_scope) {
    return create_view_ ? create_view_(backing, shape, dtype, byte_offset, mem_scope)
                        : CreateView(backing, shape, dtype, byte_offset, mem_scope);
  }

  absl::Status Clear() {
    absl::Status first;
    for (const Device& device : devices_) first.Update(device.cache->Clear());
    return first;
  }

  std::size_t UsedMemory() const {
    std::size_t sum = 0;
    for (const Device& device : devices_) {
      const LruStats stats = device.cache->stats();
      sum += stats.cached_bytes + stats.in_use_bytes;
    }
    return sum;
  }

  std::shared_ptr<LruControl> Cache(const std::optional<DlDevice>& device) const {
    for (const Device& have : devices_) {
      if (!device || have.device == *device) return have.cache;
    }
    return nullptr;
  }

  std::size_t page_size() const { return page_size_; }

  // The last copy of the pool is gone.
  void Retire() noexcept {
    for (const Device& device : devices_) device.cache->EndTryFree();
    retired_.store(true);
    ReleaseIfIdle();
  }

  void TakeBack(TensorBacking* backing) noexcept override {
    const AnyBuf buf(std::in_place_type<TensorBacking*>, backing, backing->key.nbytes);
    if (backing->cache->TryFree(buf, backing->key)) [[likely]]
      return;  // and the pool may be gone
    TakeBackSlow(backing, buf);
  }

 private:
  struct Device {
    DlDevice device;
    std::shared_ptr<LruCache> cache;  // its handles are TensorBacking*
  };

  void TakeBackSlow(TensorBacking* backing, const AnyBuf& buf) noexcept {
    const std::shared_ptr<BackingHome> keep = backing->home;
    try {
      backing->cache->FreeUncommon(buf, backing->key.nbytes, backing->key.ToSpec()).IgnoreError();
    } catch (...) {
      // Only where the cache found no memory to note it: the backing is lost to the pool, and nobody can be told.
    }
    if (retired_.load()) ReleaseIfIdle();
  }

  // What is cached keeps the pool; it goes where no tensor is left to do so. Whoever gives the last one back sees that
  // it was the last: each first frees and then looks, and both under the cache's locks.
  void ReleaseIfIdle() noexcept {
    const auto idle = [](const Device& device) { return device.cache->idle(); };
    if (!std::all_of(devices_.begin(), devices_.end(), idle)) return;
    for (const Device& device : devices_) device.cache->ReleaseCached();
  }

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
      return state->Empty(shape, dtype, device, mem_scope);
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

  LruCache* CacheOf(DlDevice device) const {
    for (const Device& have : devices_) {
      if (have.device == device) return have.cache.get();
    }
    return nullptr;
  }

  // The scope by reference: copied on, its two words are read as one, for which a processor waits.
  absl::StatusOr<Tensor> Empty(absl::Span<const std::int64_t> shape, DataType dtype, DlDevice device,
                               const std::string_view& mem_scope) {
    // One result, returned by name on every path: a second one would be moved.
    absl::StatusOr<Tensor> tensor = TensorAccess::Describe(shape, dtype, device);
    if (!tensor.ok()) return tensor;
    LruCache* const cache = CacheOf(device);
    absl::Status problem = !IsGlobal(mem_scope)    ? NotGlobal(mem_scope)
                           : cache == nullptr      ? NoSuchDevice(device)
                           : tensor->nbytes() != 0 ? TakeMemory(*tensor, *cache)
                                                   : absl::OkStatus();
    if (!problem.ok()) tensor = std::move(problem);
    return tensor;
  }

  absl::Status TakeMemory(Tensor& tensor, LruCache& cache) {
    const std::size_t element_bytes = (std::size_t{tensor.dtype().bits} * tensor.dtype().lanes + 7) / 8;
    const std::size_t alignment =
        element_bytes > alignment_ ? std::min(std::bit_ceil(element_bytes), kMaxAlignment) : 0;  // 0: alignment_
    // Cannot wrap: nbytes is at most PTRDIFF_MAX and the page size a power of two.
    const BufferKey key((tensor.nbytes() + page_size_ - 1) & ~(page_size_ - 1), {.alignment = alignment});
    TensorBacking* backing = IsAllocating(this) ? nullptr : cache.TryAlloc<TensorBacking>(key);
    if (backing == nullptr) [[unlikely]] {
      absl::StatusOr<TensorBacking*> made = MakeBacking(cache, key, tensor.device());
      if (!made.ok()) return std::move(made).status();
      backing = *made;
    }
    backing->users.store(1, std::memory_order_relaxed);
    TensorAccess::Place(tensor, BackingShare(backing), 0, key.nbytes);
    return absl::OkStatus();
  }

  // Also one that is cached, where TryAlloc could not take it.
  absl::StatusOr<TensorBacking*> MakeBacking(LruCache& cache, const BufferKey& key, DlDevice device) {
    const BufferSpec spec = key.ToSpec();
    if (IsAllocating(this)) {
      absl::StatusOr<std::unique_ptr<TensorBacking>> unpooled =
          Fresh(own_alloc_backing_, key.nbytes, spec.alignment == 0 ? alignment_ : spec.alignment, device);
      if (!unpooled.ok()) return unpooled.status();
      return unpooled->release();
    }
    absl::StatusOr<AnyBuf> buf = cache.AllocUncommon(key.nbytes, spec);
    if (!buf.ok()) return std::move(buf).status();
    TensorBacking* const backing = *buf->get<TensorBacking*>();
    if (backing->home == nullptr) {
      backing->home = shared_from_this();
      backing->cache = &cache;
      backing->key = key;
    }
    return backing;
  }

  static absl::StatusOr<Tensor> CreateView(const Tensor& backing, absl::Span<const std::int64_t> shape, DataType dtype,
                                           std::size_t byte_offset, std::string_view mem_scope) {
    if (!IsGlobal(mem_scope)) return NotGlobal(mem_scope);
    return backing.View(shape, dtype, byte_offset);
  }

  std::size_t page_size_ = 0;
  std::size_t alignment_ = 0;
  std::vector<Device> devices_;
  std::atomic<bool> made_{false};  // devices_ does not change any more
  std::atomic<bool> retired_{false};
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
  // Tensors have a share in the state itself, the copies of the pool in this one.
  pool.state_ = std::shared_ptr<State>(state->get(), [owned = *state](State* retired) { retired->Retire(); });
  return pool;
}

absl::StatusOr<Tensor> TensorPool::Empty(absl::Span<const std::int64_t> shape, DataType dtype,
                                         const std::optional<DlDevice>& device, std::string_view mem_scope) const {
  if (!state_) return EmptyPool();
  return state_->CallEmpty(shape, dtype, device, mem_scope);
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
