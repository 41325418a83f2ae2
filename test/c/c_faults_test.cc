// What goes wrong behind the C API: callbacks that throw, allocators that go before their buffers, empty members,
// closures that end themselves. Nothing leaves C but a status and a sentence.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "packalloc/c/packalloc.h"
#include "test/c/mock_device.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

using testing::ErrorHas;
using testing::MockDevice;

std::exception_ptr Boom() { return std::make_exception_ptr(std::runtime_error("boom")); }

// ---- exceptions ----

TEST_CASE("what any member throws is a status and a sentence, and nothing has changed") {
  const MockDevice device("", {.host_accessible = true});
  packalloc_buffer* a = device.Alloc(64);
  packalloc_buffer* b = device.Alloc(64);
  std::array<char, 64> bytes{};
  packalloc_buffer* made = nullptr;
  packalloc_device_address address{};
  packalloc_memory_info info{};
  void* host = nullptr;
  const std::vector<std::pair<Member, std::function<packalloc_status()>>> calls{
      {Member::kAlloc, [&] { return packalloc_alloc(device.handle(), 8, nullptr, &made); }},
      {Member::kFree, [&] { return packalloc_free(a); }},
      {Member::kCopyin, [&] { return packalloc_copyin(a, bytes.data(), 64); }},
      {Member::kCopyout, [&] { return packalloc_copyout(bytes.data(), a, 64); }},
      {Member::kAddr, [&] { return packalloc_addr(a, &address); }},
      {Member::kOffset, [&] { return packalloc_offset(a, 8, 8, &made); }},
      {Member::kTransfer, [&] { return packalloc_transfer(a, b, 64); }},
      {Member::kTransfer, [&] { return packalloc_copy(a, b, nullptr); }},
      {Member::kHostPtr, [&] { return packalloc_host_ptr(a, &host); }},
      {Member::kMemoryInfo, [&] { return packalloc_get_memory_info(device.handle(), &info); }},
      {Member::kSynchronize, [&] { return packalloc_synchronize(device.handle()); }},
  };
  for (const auto& entry : calls) {
    const Member member = entry.first;
    const auto& call = entry.second;
    CAPTURE(std::string(ToString(member)));
    device.mock().ThrowNth(member, 1, Boom());
    CHECK(call() == PACKALLOC_INTERNAL);
    CHECK(ErrorHas("boom"));
    device.mock().ThrowNth(member, 1, std::make_exception_ptr(42));
    CHECK(call() == PACKALLOC_INTERNAL);
    CHECK(ErrorHas("no std::exception"));
    device.mock().ThrowNth(member, 1, std::make_exception_ptr(std::bad_alloc()));
    CHECK(call() == PACKALLOC_RESOURCE_EXHAUSTED);
    CHECK(made == nullptr);
    CHECK(device.mock().live_blocks() == 2);
  }
  CHECK(packalloc_free(a) == PACKALLOC_OK);  // still there, after a free that threw
  CHECK(packalloc_free(b) == PACKALLOC_OK);
}

TEST_CASE("the second of three cached buffers throws when it is released: the others go, one error tells") {
  MockDevice device("+lru");
  std::vector<packalloc_buffer*> buffers;
  for (const std::size_t nbytes : {16, 32, 64}) buffers.push_back(device.Alloc(nbytes));
  for (packalloc_buffer* buffer : buffers) CHECK(packalloc_free(buffer) == PACKALLOC_OK);
  device.mock().ThrowNth(Member::kFree, 2, Boom());
  CHECK(packalloc_trim(device.handle(), 0) != PACKALLOC_OK);
  CHECK(*packalloc_last_error() != '\0');
  packalloc_cache_stats stats = PACKALLOC_CACHE_STATS_INIT;
  CHECK(packalloc_get_cache_stats(device.handle(), &stats) == PACKALLOC_OK);
  CHECK(stats.cached_buffers == 0);
  CHECK(stats.failed_frees == 1);
  REQUIRE(device.mock().live().size() == 1);  // the one that the device did not take back
  CHECK(device.mock().live()[0].buf.nbytes == 32);
  device.expected_live = 1;
}

TEST_CASE("an eviction that throws does not fail the call that made room") {
  MockDevice device("+lru:max_bytes=100");
  packalloc_buffer* a = device.Alloc(80);
  packalloc_buffer* b = device.Alloc(60);
  CHECK(packalloc_free(a) == PACKALLOC_OK);
  device.mock().ThrowNth(Member::kFree, 1, Boom());
  CHECK(packalloc_free(b) == PACKALLOC_OK);  // 80 + 60 are too many: the older one goes, or tries to
  packalloc_cache_stats stats = PACKALLOC_CACHE_STATS_INIT;
  CHECK(packalloc_get_cache_stats(device.handle(), &stats) == PACKALLOC_OK);
  CHECK(stats.failed_frees == 1);
  CHECK(stats.cached_bytes == 60);
  device.expected_live = 1;
}

TEST_CASE("a visitor and a progress callback that throw") {
  CHECK(packalloc_list_devices([](void*, const packalloc_device*) { throw 42; }, nullptr) == PACKALLOC_INTERNAL);
  const TempDir folder;
  const std::string path = folder.Write("weights.bin", std::string(100, 'x'));
  const MockDevice device;
  packalloc_buffer* buffer = device.Alloc(100);
  const packalloc_load_item item{buffer, path.c_str(), 0};
  const auto progress = [](void*, std::uint64_t, std::uint64_t) -> std::int32_t { throw std::runtime_error("boom"); };
  CHECK(packalloc_load(&item, 1, progress, nullptr) == PACKALLOC_INTERNAL);
  CHECK(ErrorHas("boom"));
  CHECK(packalloc_free(buffer) == PACKALLOC_OK);  // no call holds it any more
}

// ---- lifetime ----

TEST_CASE("an allocator that is closed before its buffers lives until the last of them, in every order") {
  std::array<int, 4> order{0, 1, 2, 3};
  do {
    for (const char* layers : {"", "+lru"}) {
      MockDevice device(layers);
      packalloc_buffer* base = device.Alloc(4096);
      packalloc_buffer* other = device.Alloc(100);
      packalloc_buffer* view = nullptr;
      packalloc_buffer* inner = nullptr;
      REQUIRE(packalloc_offset(base, 100, 50, &view) == PACKALLOC_OK);
      REQUIRE(packalloc_offset(base, 10, 5, &inner) == PACKALLOC_OK);
      CHECK(packalloc_free(device.Alloc(77)) == PACKALLOC_OK);  // with +lru: cached
      device.Close();
      std::array<packalloc_buffer*, 4> buffers{base, other, view, inner};
      // What is refused because views are alive is tried again at the end.
      for (const int i : order) {
        char byte = 1;
        CHECK(packalloc_copyin(buffers[i], &byte, 1) == PACKALLOC_OK);
        if (packalloc_free(buffers[i]) == PACKALLOC_OK) buffers[i] = nullptr;
      }
      for (packalloc_buffer* buffer : buffers) {
        if (buffer != nullptr) CHECK(packalloc_free(buffer) == PACKALLOC_OK);
      }
      CHECK(device.mock().live_blocks() == 0);  // what was cached too
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

// ---- allocators in C: empty members and closures that end themselves ----

struct Heap {
  int live = 0;
  int released = 0;
  packalloc_allocator* own = nullptr;  // closed by the next alloc
};

packalloc_record HeapRecord(Heap* heap) {
  packalloc_record record = PACKALLOC_RECORD_INIT;
  record.self = heap;
  record.release = [](void* self) { ++static_cast<Heap*>(self)->released; };
  record.name = "HEAP";
  record.min_alignment = 16;
  record.alloc = [](void* self, std::size_t nbytes, const packalloc_buffer_spec*, packalloc_raw_buffer* out) {
    auto& h = *static_cast<Heap*>(self);
    if (h.own != nullptr) CHECK(packalloc_close(std::exchange(h.own, nullptr)) == PACKALLOC_OK);
    CHECK(h.released == 0);  // the closure that runs is alive
    ++h.live;
    out->word[0] = reinterpret_cast<std::uintptr_t>(std::malloc(nbytes));
    return packalloc_status{PACKALLOC_OK};
  };
  record.free = [](void* self, packalloc_raw_buffer buffer, std::size_t, const packalloc_buffer_spec*) {
    --static_cast<Heap*>(self)->live;
    std::free(reinterpret_cast<void*>(buffer.word[0]));
    return packalloc_status{PACKALLOC_OK};
  };
  record.copyin = [](void*, packalloc_raw_buffer dest, const void* src, std::size_t nbytes) {
    std::memcpy(reinterpret_cast<void*>(dest.word[0]), src, nbytes);
    return packalloc_status{PACKALLOC_OK};
  };
  record.copyout = [](void*, void* dest, packalloc_raw_buffer src, std::size_t nbytes) {
    std::memcpy(dest, reinterpret_cast<void*>(src.word[0]), nbytes);
    return packalloc_status{PACKALLOC_OK};
  };
  record.addr = [](void*, packalloc_raw_buffer buffer, packalloc_device_address* out) {
    out->value = buffer.word[0];
    return packalloc_status{PACKALLOC_OK};
  };
  return record;
}

TEST_CASE("an allocator in C without optional members: visible, unsupported, and copied the slow way") {
  Heap heap;
  const packalloc_record record = HeapRecord(&heap);
  packalloc_allocator* device = nullptr;
  REQUIRE(packalloc_pack(&record, &device) == PACKALLOC_OK);
  packalloc_traits traits = PACKALLOC_TRAITS_INIT;
  CHECK(packalloc_get_traits(device, &traits) == PACKALLOC_OK);
  CHECK(std::string(traits.name) == "HEAP");
  CHECK(traits.supports_offset + traits.supports_transfer + traits.supports_copy_from_disk + traits.supports_host_ptr ==
        0);
  packalloc_buffer* a = nullptr;
  packalloc_buffer* b = nullptr;
  packalloc_buffer* view = nullptr;
  void* host = nullptr;
  packalloc_memory_info info{};
  REQUIRE(packalloc_alloc(device, 100, nullptr, &a) == PACKALLOC_OK);
  REQUIRE(packalloc_alloc(device, 100, nullptr, &b) == PACKALLOC_OK);
  CHECK(packalloc_offset(a, 10, 0, &view) == PACKALLOC_UNIMPLEMENTED);
  CHECK(packalloc_transfer(a, b, 10) == PACKALLOC_UNIMPLEMENTED);
  CHECK(packalloc_host_ptr(a, &host) == PACKALLOC_UNIMPLEMENTED);
  CHECK(packalloc_get_memory_info(device, &info) == PACKALLOC_UNIMPLEMENTED);
  CHECK(packalloc_native_handle(device, "x", &host) == PACKALLOC_NOT_FOUND);
  CHECK(packalloc_synchronize(device) == PACKALLOC_OK);
  const std::string bytes(100, 'w');
  CHECK(packalloc_copyin(a, bytes.data(), 100) == PACKALLOC_OK);
  CHECK(packalloc_copy(b, a, nullptr) == PACKALLOC_OK);
  const TempDir folder;
  const std::string path = folder.Write("weights.bin", std::string(50, 'x') + std::string(50, 'y'));
  const packalloc_load_item item{a, path.c_str(), 0};
  CHECK(packalloc_load(&item, 1, nullptr, nullptr) == PACKALLOC_OK);
  std::string got(100, ' ');
  CHECK(packalloc_copyout(got.data(), a, 100) == PACKALLOC_OK);
  CHECK(got == std::string(50, 'x') + std::string(50, 'y'));
  CHECK(packalloc_copyout(got.data(), b, 100) == PACKALLOC_OK);
  CHECK(got == bytes);
  CHECK(packalloc_close(device) == PACKALLOC_OK);
  CHECK(heap.released == 0);
  CHECK(packalloc_free(a) == PACKALLOC_OK);
  CHECK(packalloc_free(b) == PACKALLOC_OK);
  CHECK(heap.released == 1);
  CHECK(heap.live == 0);
}

TEST_CASE("an allocator in C that lacks a required member is refused, and stays the caller's") {
  for (int missing = 0; missing < 5; ++missing) {
    Heap heap;
    packalloc_record record = HeapRecord(&heap);
    const char* name = "";
    switch (missing) {
      case 0:
        record.alloc = nullptr, name = "alloc";
        break;
      case 1:
        record.free = nullptr, name = "free";
        break;
      case 2:
        record.copyin = nullptr, name = "copyin";
        break;
      case 3:
        record.copyout = nullptr, name = "copyout";
        break;
      default:
        record.addr = nullptr, name = "addr";
    }
    packalloc_allocator* device = nullptr;
    CHECK(packalloc_pack(&record, &device) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(ErrorHas(name));
    CHECK(device == nullptr);
    CHECK(heap.released == 0);
  }
}

TEST_CASE("an alloc that closes its own allocator finishes, and the buffer is good") {
  Heap heap;
  const packalloc_record record = HeapRecord(&heap);
  packalloc_allocator* device = nullptr;
  REQUIRE(packalloc_pack(&record, &device) == PACKALLOC_OK);
  heap.own = device;
  packalloc_buffer* buffer = nullptr;
  packalloc_buffer* none = nullptr;
  REQUIRE(packalloc_alloc(device, 64, nullptr, &buffer) == PACKALLOC_OK);
  CHECK(packalloc_alloc(device, 64, nullptr, &none) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_copyin(buffer, "abc", 3) == PACKALLOC_OK);
  CHECK(heap.released == 0);
  CHECK(packalloc_free(buffer) == PACKALLOC_OK);
  CHECK(heap.live == 0);
  CHECK(heap.released == 1);
}

TEST_CASE("an alloc that closes its own allocator and then fails ends it") {
  Heap heap;
  packalloc_record record = HeapRecord(&heap);
  record.alloc = [](void* self, std::size_t, const packalloc_buffer_spec*, packalloc_raw_buffer*) {
    CHECK(packalloc_close(static_cast<Heap*>(self)->own) == PACKALLOC_OK);
    return packalloc_status{PACKALLOC_UNAVAILABLE};
  };
  packalloc_allocator* device = nullptr;
  REQUIRE(packalloc_pack(&record, &device) == PACKALLOC_OK);
  heap.own = device;
  packalloc_buffer* buffer = nullptr;
  CHECK(packalloc_alloc(device, 64, nullptr, &buffer) == PACKALLOC_UNAVAILABLE);
  CHECK(heap.released == 1);
}

}  // namespace
}  // namespace packalloc
