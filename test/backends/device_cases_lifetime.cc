// Who keeps what alive: buffers, views and exports in any order, memory of somebody else, records that lack members.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/backends/disk.h"
#include "packalloc/buffer.h"
#include "packalloc/tensor/device.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor.h"
#include "packalloc/tensor/tensor_pool.h"
#include "test/backends/device_case.h"
#include "test/temp_dir.h"

namespace packalloc::testing {
namespace {

// Of a device that DLPack does not know, any.
DlDevice DlDeviceFor(const PackedAllocator& memory) { return DlDeviceOf(memory).value_or(DlDevice{DlDevice::kExtDev}); }

void AnyOrderOfDestruction(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  for (const auto& order : kOrders) {
    for (const bool cached : {false, true}) {
      PackedAllocator memory = device.open();
      if (cached) memory = Ok(Lru(memory));
      std::optional<Buffer> buffer(std::in_place, memory, 4096);
      std::optional<Buffer> view = Ok(buffer->View(64, 100));
      Ok(view->CopyIn(Bytes(TextPattern(64))));
      std::optional<Tensor> tensor = Ok(Tensor::Over(*view, {64}, kUInt8, {.device = DlDeviceFor(memory)}));
      DlpackVersionedPtr exported = Ok(ToDlpackVersioned(*tensor));
      tensor.reset();
      if (cached) {
        for (const std::size_t nbytes : {8192, 16384}) Free(memory, Ok(memory.alloc(nbytes)));
        CHECK(device.live() == live_before + 3);
      }
      memory = PackedAllocator();
      for (const int what : order) {
        CHECK(device.live() > live_before);
        if (what == 0) buffer.reset();
        if (what == 1) view.reset();
        if (what == 2) exported.reset();
      }
      CHECK(device.live() == live_before);
    }
    PackedAllocator memory = device.open();
    std::optional<TensorPool> pool = Ok(TensorPool::Make({{DlDeviceFor(memory), memory}}));
    Tensor live = Ok(pool->Empty({100}, kFloat32));
    Tensor view = Ok(pool->CreateView(live, {10}, kFloat32, 40));
    Ok(pool->Empty({8000}, kUInt8));  // lies in the cache
    memory = PackedAllocator();
    for (const int what : order) {
      CHECK(device.live() == live_before + 2);
      if (what == 0) pool.reset();
      if (what == 1) live = Tensor();
      if (what == 2) view = Tensor();
    }
    CHECK(device.live() == live_before);
  }
}

void AViewKeepsItsBytesWhenTheBufferIsLetGo(const DeviceUnderTest& device) {
  const std::size_t live_before = device.live();
  {
    const Cached cached(device);
    std::optional<Buffer> base(std::in_place, cached.memory, 8192);
    std::optional<Buffer> view = Ok(base->View(4096, 4096));
    Ok(view->CopyIn(Bytes(std::string(4096, '\xAA'))));
    const DeviceAddress place = Ok(base->addr());
    base.reset();
    CHECK(cached.stats().in_use_buffers == 1);
    const Buffer other(cached.memory, 8192);
    Ok(other.CopyIn(Bytes(std::string(8192, '\x55'))));
    CHECK(Ok(other.addr()) != place);
    CHECK(Holds(device, cached.memory, Ok(view->handle()), std::string(4096, '\xAA')));
    view.reset();
    CHECK(cached.stats().in_use_buffers == 1);
    CHECK(cached.stats().cached_buffers == 1);
    const AnyBuf first = Ok(cached.memory.alloc(8192));
    const AnyBuf second = Ok(cached.memory.alloc(8192));
    CHECK(cached.stats().hits == 1);
    CHECK(Ok(cached.memory.addr(first)) == place);
    CHECK(Ok(cached.memory.addr(second)) != place);
    CHECK(device.live() == live_before + 3);
    Free(cached.memory, first);
    Free(cached.memory, second);
  }
  CHECK(device.live() == live_before);
}

// A stack array, a file's mapping and a block of the heap, one after the other.
template <typename Use>
void WithForeignMemory(Use use) {
  constexpr std::size_t kBytes = 4096;
  alignas(4096) std::byte array[kBytes];
  use(array);
  const TempDir dir;
  const int file = open(dir.Write("f", std::string(kBytes, 'f')).c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(file >= 0);
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  REQUIRE(mapped != MAP_FAILED);
  use(static_cast<std::byte*>(mapped));
  CHECK(munmap(mapped, kBytes) == 0);
  const auto block = std::make_unique<std::byte[]>(kBytes);
  use(block.get());
}

void ForeignMemoryIsNeitherFreedNorKept(const DeviceUnderTest& device) {
  WithForeignMemory([&device](std::byte* theirs) {
    const std::string text = TextPattern(4096);
    device.make_known(theirs, 4096);
    for (const bool with_deleter : {true, false}) {
      std::memset(theirs, 0x11, 4096);
      const std::size_t live_before = device.live();
      int deleted = 0;
      {
        const Cached cached(device);
        {
          std::function<void()> deleter;
          if (with_deleter) deleter = [&deleted] { ++deleted; };
          const Buffer buffer = Buffer::Wrap(cached.memory, theirs, 4096, deleter, device.external);
          Ok(buffer.CopyIn(Bytes(text)));
          CHECK(Holds(device, cached.memory, Ok(buffer.handle()), text));
          CHECK(cached.stats().in_use_bytes == 0);
          CHECK(deleted == 0);
        }
        CHECK(deleted == (with_deleter ? 1 : 0));
        CHECK(cached.stats().cached_buffers == 0);
        CHECK(device.live() == live_before);
        if (device.moves_bytes) CHECK(std::memcmp(theirs, text.data(), text.size()) == 0);
        std::memset(theirs, 0x22, 4096);
        const AnyBuf plain = Ok(cached.memory.alloc(4096));
        if (cached.memory.traits().address_is_pointer) {
          CHECK(Ok(cached.memory.addr(plain)).value != reinterpret_cast<std::uintptr_t>(theirs));
        }
        Ok(cached.memory.copyin(plain, Bytes(text)));
        Free(cached.memory, plain);
        Ok(cached.control->Clear());
        CHECK(cached.stats().peak_in_use_bytes == 4096);
      }
      CHECK(deleted == (with_deleter ? 1 : 0));
      CHECK(std::string(reinterpret_cast<const char*>(theirs), 4096) == std::string(4096, '\x22'));
      CHECK(device.live() == live_before);
    }
    device.forget(theirs);
  });
}

PackedAllocator Without(const DeviceUnderTest& device, void (*strip)(AnyRecord&)) {
  const PackedAllocator whole = device.open();
  AnyRecord record = whole.record();
  strip(record);
  return Ok(whole.WithRecord(record));
}

void AMissingMemberIsAnErrorOrDoneAnotherWay(const DeviceUnderTest& device) {
  const PackedAllocator bare = Without(device, [](AnyRecord& record) {
    record.offset = decltype(record.offset)(decltype(record.offset)());  // an empty function in a function
    record.transfer = nullptr;
    record.copy_from_disk = nullptr;
    record.host_ptr = nullptr;
  });
  const std::string text = TextPattern(100'000);
  const TempDir dir;
  const PackedAllocator disk = Ok(Pack(Ok(DiskAllocator(dir.Write("f", text)))));
  for (const PackedAllocator& memory : {bare, Ok(Lru(bare))}) {
    CHECK_FALSE(memory.supports_offset());
    CHECK_FALSE(memory.supports_transfer());
    CHECK_FALSE(memory.supports_copy_from_disk());
    CHECK_FALSE(memory.supports_host_ptr());
    const BufferRef from = Filled(memory, text);
    const BufferRef to = Filled(memory, std::string(text.size(), 'x'));
    CHECK(absl::IsUnimplemented(memory.offset(from.buffer, 1, 0).status()));
    CHECK(absl::IsUnimplemented(memory.transfer(to.buffer, from.buffer, 1)));
    CHECK(absl::IsUnimplemented(memory.copy_from_disk(to.buffer, DiskExtent{nullptr, 0, 1}, 1)));
    CHECK(absl::IsUnimplemented(Buffer(memory, 8).View(4, 4).status()));
    CHECK(Ok(Copy(to, from)).path == CopyPath::kStaged);
    CHECK(Holds(device, memory, to.buffer, text));
    Ok(memory.copyin(to.buffer, Bytes(std::string(text.size(), 'x'))));
    Ok(Copy(to, {disk, Ok(disk.alloc(text.size()))}));
    CHECK(Holds(device, memory, to.buffer, text));
    for (const BufferRef& ref : {from, to}) Free(memory, ref.buffer);
  }
  const auto refused = [&device](void (*strip)(AnyRecord&)) {
    AnyRecord record = device.open().record();
    strip(record);
    return absl::IsInvalidArgument(Pack(record).status());
  };
  CHECK(refused([](AnyRecord& record) { record.alloc = nullptr; }));
  CHECK(refused([](AnyRecord& record) { record.free = nullptr; }));
  CHECK(refused([](AnyRecord& record) { record.copyin = nullptr; }));
  CHECK(refused([](AnyRecord& record) { record.copyout = nullptr; }));
  CHECK(refused([](AnyRecord& record) { record.addr = nullptr; }));
}

void CopiesAreOneAndAMovedOneIsEmpty(const DeviceUnderTest& device) {
  PackedAllocator first = device.open();
  const PackedAllocator copy = first;
  const AnyBuf buf = Ok(first.alloc(64));
  Free(copy, buf);
  const PackedAllocator moved = std::move(first);
  // NOLINTBEGIN(bugprone-use-after-move)
  CHECK(absl::IsFailedPrecondition(first.alloc(64).status()));
  CHECK(absl::IsFailedPrecondition(first.free(buf, 64)));
  // NOLINTEND(bugprone-use-after-move)
  CHECK(moved == copy);

  // An alloc that puts another allocator in the place of the one that it is called by.
  struct Holder {
    PackedAllocator current;
  };
  const auto holder = std::make_shared<Holder>();
  holder->current = Ok(ApplyLayer(device.open(), [&](const AnyRecord& inner) -> absl::StatusOr<AnyRecord> {
    AnyRecord outer = inner;
    outer.alloc = [inner, &device, weak = std::weak_ptr<Holder>(holder)](std::size_t nbytes, const BufferSpec& spec) {
      weak.lock()->current = device.open();
      return inner.alloc(nbytes, spec);
    };
    return outer;
  }));
  const PackedAllocator before = holder->current;  // as the caller of a shared allocator does
  const AnyBuf made = Ok(before.alloc(64));
  CHECK(absl::IsInvalidArgument(holder->current.free(made, 64)));
  Free(before, made);
}

}  // namespace

DeviceCaseList LifetimeCases() {
  return {
      {"any order of destruction", AnyOrderOfDestruction},
      {"a view keeps its bytes when the buffer is let go", AViewKeepsItsBytesWhenTheBufferIsLetGo},
      {"foreign memory is neither freed nor kept", ForeignMemoryIsNeitherFreedNorKept},
      {"a missing member is an error, or done another way", AMissingMemberIsAnErrorOrDoneAnotherWay},
      {"copies are one, and a moved one is empty", CopiesAreOneAndAMovedOneIsEmpty},
  };
}

}  // namespace packalloc::testing
