// Long random sequences on a pool, against a model that anybody can check: which memory a tensor gets, what is cached,
// what is evicted, and what is in every tensor.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "packalloc/backends/mock.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor_pool.h"

namespace packalloc {
namespace {

constexpr std::size_t kPage = 256;

struct Block {
  std::uintptr_t address;
  std::size_t rounded;
  std::size_t alignment;
};

// One device: what is cached, most recently used first.
struct ModelDevice {
  std::list<Block> cached;
  std::size_t cached_bytes = 0;
  std::size_t live_bytes = 0;
  std::size_t allocs = 0;
};

// A tensor, view or export that is held, its block's number of users shared with the others of the block.
struct Held {
  Tensor tensor;  // empty where it was exported
  DlpackVersionedPtr exported;
  std::shared_ptr<Block> block;  // use_count: the users
  std::size_t device;
  std::vector<std::byte> content;
  std::size_t offset;  // in the block
};

class Model {
 public:
  Model(unsigned seed, std::size_t limit) : random_(seed), limit_(limit) {
    std::vector<TensorPoolDevice> devices;
    for (int i = 0; i < 2; ++i) {
      Allocator<MockBuf> record = MockAllocator({.address_is_pointer = i == 0, .log_calls = true});
      mocks_[i] = Find<MockControl>(record);
      devices.push_back({DlDevice{DlDevice::kExtDev, i}, *Pack(std::move(record))});
    }
    pool_ = *TensorPool::Make(std::move(devices), {.page_size = kPage, .max_cached_bytes = limit});
  }

  void Step() {
    const std::size_t what = Random(100);
    if (what < 45 || held_.empty()) {
      Empty();
    } else if (what < 60) {
      View();
    } else if (what < 68) {
      Export();
    } else if (what < 99) {
      Drop(Random(held_.size()));
    } else {
      CHECK(pool_.Clear().ok());
      for (ModelDevice& device : devices_) {
        device.cached.clear();
        device.cached_bytes = 0;
      }
    }
    std::size_t used = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const ModelDevice& device = devices_[i];
      const LruStats stats = pool_.cache(DlDevice{DlDevice::kExtDev, static_cast<int>(i)})->stats();
      REQUIRE(stats.cached_bytes == device.cached_bytes);
      REQUIRE(stats.cached_buffers == device.cached.size());
      REQUIRE(stats.in_use_bytes == device.live_bytes);
      REQUIRE(mocks_[i]->live_bytes() == device.cached_bytes + device.live_bytes);
      REQUIRE(mocks_[i]->log().Count(Member::kAlloc) == device.allocs);
      used += device.cached_bytes + device.live_bytes;
    }
    REQUIRE(pool_.UsedMemory() == used);
  }

  // The pool goes first where `pool_first`; then everything that is held, in a random order.
  void End(bool pool_first) {
    if (pool_first) pool_ = TensorPool();
    while (!held_.empty()) {
      const std::size_t i = Random(held_.size());
      CheckContent(held_[i]);
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    pool_ = TensorPool();
    for (const auto& mock : mocks_) {
      CHECK(mock->live_blocks() == 0);
      CHECK(mock->misuses().empty());
    }
  }

 private:
  std::size_t Random(std::size_t below) { return std::uniform_int_distribution<std::size_t>(0, below - 1)(random_); }

  void Fill(Held& held) {
    held.content.resize(held.tensor.nbytes());
    for (std::byte& byte : held.content) byte = static_cast<std::byte>(Random(256));
    REQUIRE(held.tensor.CopyIn(held.content).ok());
  }

  void CheckContent(const Held& held) {
    if (!held.tensor) return;
    std::vector<std::byte> read(held.tensor.nbytes());
    REQUIRE(held.tensor.CopyOut(absl::MakeSpan(read)).ok());
    REQUIRE(read == held.content);
  }

  void Empty() {
    const std::size_t index = Random(2);
    std::vector<std::int64_t> shape(Random(6));
    for (std::int64_t& dimension : shape) dimension = static_cast<std::int64_t>(Random(8) == 0 ? 0 : 1 + Random(5));
    const DataType dtypes[] = {kFloat32, kBool, {DataType::kUInt, 4}, {DataType::kFloat, 64, 64}};
    const DataType dtype = dtypes[Random(4)];
    const absl::StatusOr<Tensor> tensor =
        pool_.Empty(shape, dtype, DlDevice{DlDevice::kExtDev, static_cast<int>(index)});
    REQUIRE(tensor.ok());
    std::size_t bits = std::size_t{dtype.bits} * dtype.lanes;
    for (const std::int64_t dimension : shape) bits *= static_cast<std::size_t>(dimension);
    REQUIRE(tensor->nbytes() == (bits + 7) / 8);
    if (bits == 0) {
      REQUIRE(tensor->data() == DeviceAddress{});
      return;
    }
    const std::size_t rounded = (tensor->nbytes() + kPage - 1) / kPage * kPage;
    const std::size_t alignment = dtype.lanes == 64 ? 512 : 256;
    REQUIRE(tensor->capacity() == rounded);
    ModelDevice& device = devices_[index];
    auto hit = device.cached.begin();
    while (hit != device.cached.end() && (hit->rounded != rounded || hit->alignment != alignment)) ++hit;
    if (hit != device.cached.end()) {
      REQUIRE(tensor->data().value == hit->address);
      device.cached.erase(hit);
      device.cached_bytes -= rounded;
    } else {
      ++device.allocs;
      if (tensor->data_is_pointer()) REQUIRE(tensor->data().value % alignment == 0);
    }
    device.live_bytes += rounded;
    Held held{*tensor, nullptr, std::make_shared<Block>(Block{tensor->data().value, rounded, alignment}), index, {}, 0};
    Fill(held);
    held_.push_back(std::move(held));
  }

  // Of a tensor or a view, its bytes then known again by reading.
  void View() {
    const Held& base = held_[Random(held_.size())];
    if (!base.tensor) return;
    const std::size_t capacity = base.tensor.capacity();
    const std::size_t offset = Random(capacity + 2);
    const std::size_t nbytes = Random(capacity + 2);
    const absl::StatusOr<Tensor> view =
        pool_.CreateView(base.tensor, {static_cast<std::int64_t>(nbytes)}, kUInt8, offset);
    REQUIRE(view.ok() == (offset + nbytes <= capacity));
    if (!view.ok()) return;
    Held held{*view, nullptr, base.block, base.device, std::vector<std::byte>(nbytes), base.offset + offset};
    if (nbytes != 0) {
      const DeviceAddress at = view->data();
      REQUIRE(at.value + at.byte_offset == base.block->address + held.offset);
      REQUIRE((at.byte_offset == 0) == (view->data_is_pointer() || held.offset == 0));
    }
    REQUIRE(view->CopyOut(absl::MakeSpan(held.content)).ok());
    held_.push_back(std::move(held));
  }

  void Export() {
    Held& held = held_[Random(held_.size())];
    if (!held.tensor) return;
    held.exported = *ToDlpackVersioned(held.tensor);
    held.tensor = Tensor();
  }

  void Drop(std::size_t i) {
    CheckContent(held_[i]);
    const std::shared_ptr<Block> block = held_[i].block;
    ModelDevice& device = devices_[held_[i].device];
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    if (block.use_count() > 1) return;
    device.live_bytes -= block->rounded;
    if (block->rounded > limit_) return;
    device.cached.push_front(*block);
    device.cached_bytes += block->rounded;
    while (device.cached_bytes > limit_) {
      device.cached_bytes -= device.cached.back().rounded;
      device.cached.pop_back();
    }
  }

  std::mt19937 random_;
  const std::size_t limit_;
  std::shared_ptr<MockControl> mocks_[2];
  TensorPool pool_;
  ModelDevice devices_[2];
  std::vector<Held> held_;
};

TEST_CASE("a pool does what the model does") {
  const unsigned seed = std::random_device()();
  for (unsigned i = 0; i < 12; ++i) {
    CAPTURE(seed + i);
    Model model(seed + i, i % 3 == 0 ? SIZE_MAX : std::size_t{1} << (10 + i % 3 * 3));
    for (int step = 0; step < 400; ++step) model.Step();
    model.End(i % 2 == 0);
  }
}

}  // namespace
}  // namespace packalloc
