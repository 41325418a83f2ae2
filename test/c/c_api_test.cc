// The C API, call by call: what it gives, and what it refuses.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "packalloc/c/packalloc.h"
#include "test/c/mock_device.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

using testing::ErrorHas;
using testing::MockDevice;

// An open device, closed at the end.
struct Device {
  explicit Device(const char* name) {
    REQUIRE_MESSAGE(packalloc_open(name, &handle) == PACKALLOC_OK, packalloc_last_error());
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { CHECK(packalloc_close(handle) == PACKALLOC_OK); }
  packalloc_buffer* Alloc(std::size_t nbytes, const packalloc_buffer_spec* spec = nullptr) const {
    packalloc_buffer* buffer = nullptr;
    REQUIRE_MESSAGE(packalloc_alloc(handle, nbytes, spec, &buffer) == PACKALLOC_OK, packalloc_last_error());
    return buffer;
  }
  packalloc_allocator* handle = nullptr;
};

std::vector<unsigned char> Pattern(std::size_t nbytes) {
  std::vector<unsigned char> bytes(nbytes);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<unsigned char>(i % 251);
  return bytes;
}

std::vector<unsigned char> BytesOf(packalloc_buffer* buffer) {
  std::size_t nbytes = 0;
  REQUIRE(packalloc_nbytes(buffer, &nbytes) == PACKALLOC_OK);
  std::vector<unsigned char> bytes(nbytes);
  REQUIRE_MESSAGE(packalloc_copyout(bytes.data(), buffer, nbytes) == PACKALLOC_OK, packalloc_last_error());
  return bytes;
}

TEST_CASE("bytes in, through a view, and out") {
  const Device cpu("CPU");
  packalloc_buffer* buffer = cpu.Alloc(1000);
  const std::vector<unsigned char> bytes = Pattern(1000);
  CHECK(packalloc_copyin(buffer, bytes.data(), bytes.size()) == PACKALLOC_OK);
  CHECK(BytesOf(buffer) == bytes);
  packalloc_buffer* view = nullptr;
  packalloc_buffer* inner = nullptr;
  REQUIRE(packalloc_offset(buffer, 100, 7, &view) == PACKALLOC_OK);
  REQUIRE(packalloc_offset(view, 10, 5, &inner) == PACKALLOC_OK);
  CHECK(BytesOf(inner) == std::vector<unsigned char>(bytes.begin() + 12, bytes.begin() + 22));

  packalloc_device_address base{};
  packalloc_device_address at{};
  CHECK(packalloc_addr(buffer, &base) == PACKALLOC_OK);
  CHECK(packalloc_addr(inner, &at) == PACKALLOC_OK);
  CHECK(at.value == base.value + 12);
  void* host = nullptr;
  CHECK(packalloc_host_ptr(inner, &host) == PACKALLOC_OK);
  CHECK(std::memcmp(host, bytes.data() + 12, 10) == 0);

  CHECK(packalloc_free(buffer) == PACKALLOC_FAILED_PRECONDITION);  // its views are alive
  CHECK(ErrorHas("1 views"));
  CHECK(packalloc_free(view) == PACKALLOC_FAILED_PRECONDITION);  // so is one of its own
  CHECK(BytesOf(buffer) == bytes);
  CHECK(packalloc_free(inner) == PACKALLOC_OK);
  CHECK(packalloc_free(view) == PACKALLOC_OK);
  CHECK(packalloc_free(buffer) == PACKALLOC_OK);
}

TEST_CASE("transfer and copy, inside a device and between two") {
  const Device cpu("CPU");
  const MockDevice gpu("", {.host_accessible = false});
  const std::vector<unsigned char> bytes = Pattern(1000);
  packalloc_buffer* a = cpu.Alloc(1000);
  packalloc_buffer* b = cpu.Alloc(1000);
  packalloc_buffer* c = gpu.Alloc(1000);
  packalloc_buffer* shorter = gpu.Alloc(999);
  CHECK(packalloc_copyin(a, bytes.data(), 1000) == PACKALLOC_OK);
  CHECK(packalloc_transfer(b, a, 1000) == PACKALLOC_OK);
  CHECK(BytesOf(b) == bytes);
  const char* path = nullptr;
  CHECK(packalloc_copy(c, b, &path) == PACKALLOC_OK);
  CHECK(std::string(path) == "direct copyin");
  CHECK(BytesOf(c) == bytes);
  CHECK(packalloc_copy(a, c, nullptr) == PACKALLOC_OK);
  CHECK(packalloc_transfer(c, a, 1000) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_copy(shorter, a, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_transfer(a, b, 1001) == PACKALLOC_OUT_OF_RANGE);
  for (packalloc_buffer* buffer : {a, b, c, shorter}) CHECK(packalloc_free(buffer) == PACKALLOC_OK);
}

TEST_CASE("the spec is honoured or refused") {
  const Device cpu("CPU");
  packalloc_buffer_spec spec = PACKALLOC_BUFFER_SPEC_INIT;
  spec.alignment = 4096;
  spec.zero = 1;
  packalloc_buffer* buffer = cpu.Alloc(100, &spec);
  packalloc_device_address address{};
  CHECK(packalloc_addr(buffer, &address) == PACKALLOC_OK);
  CHECK(address.value % 4096 == 0);
  CHECK(BytesOf(buffer) == std::vector<unsigned char>(100, 0));
  CHECK(packalloc_free(buffer) == PACKALLOC_OK);

  std::array<unsigned char, 64> mine{};
  packalloc_buffer_spec wrap = PACKALLOC_BUFFER_SPEC_INIT;
  wrap.external_ptr = mine.data();
  buffer = cpu.Alloc(mine.size(), &wrap);
  CHECK(packalloc_copyin(buffer, "abc", 3) == PACKALLOC_OK);
  CHECK(std::memcmp(mine.data(), "abc", 3) == 0);
  CHECK(packalloc_free(buffer) == PACKALLOC_OK);

  spec.alignment = 3;
  CHECK(packalloc_alloc(cpu.handle, 100, &spec, &buffer) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(buffer == nullptr);
  spec = PACKALLOC_BUFFER_SPEC_INIT;
  spec.reserved[1] = 1;
  CHECK(packalloc_alloc(cpu.handle, 100, &spec, &buffer) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_alloc(cpu.handle, SIZE_MAX, nullptr, &buffer) == PACKALLOC_INVALID_ARGUMENT);
}

TEST_CASE("a spec of an older caller, of a newer one, and of one that forgot its size") {
  struct Newer {
    packalloc_buffer_spec spec = PACKALLOC_BUFFER_SPEC_INIT;
    std::uint64_t added = 0;
  } newer;
  newer.spec.struct_size = sizeof newer;
  const Device cpu("CPU");
  CHECK(packalloc_free(cpu.Alloc(100, &newer.spec)) == PACKALLOC_OK);  // asks for nothing new
  newer.added = 1;
  packalloc_buffer* buffer = nullptr;
  CHECK(packalloc_alloc(cpu.handle, 100, &newer.spec, &buffer) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(ErrorHas("does not have"));
  for (const std::size_t size : {std::size_t{0}, sizeof(packalloc_buffer_spec) - 1, std::size_t{65537}, SIZE_MAX}) {
    newer.spec.struct_size = size;
    CHECK(packalloc_alloc(cpu.handle, 100, &newer.spec, &buffer) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(ErrorHas("struct_size"));
  }
}

TEST_CASE("an answer in a longer struct is 0 where the library knows nothing") {
  struct Newer {
    packalloc_traits traits = PACKALLOC_TRAITS_INIT;
    std::uint64_t added = 77;
    std::uint64_t behind = 77;
  } newer;
  newer.traits.struct_size = sizeof newer.traits + sizeof newer.added;
  const Device cpu("CPU");
  CHECK(packalloc_get_traits(cpu.handle, &newer.traits) == PACKALLOC_OK);
  CHECK(newer.traits.struct_size == sizeof newer.traits + sizeof newer.added);
  CHECK(std::string(newer.traits.name) == "CPU");
  CHECK(newer.traits.supports_offset == 1);
  CHECK(newer.added == 0);
  CHECK(newer.behind == 77);
  newer.traits.struct_size = 8;
  CHECK(packalloc_get_traits(cpu.handle, &newer.traits) == PACKALLOC_INVALID_ARGUMENT);
}

TEST_CASE("cache: layers by name and on top, statistics, trim") {
  const Device cached("CPU+lru:max_bytes=1MiB");
  CHECK(packalloc_free(cached.Alloc(1000)) == PACKALLOC_OK);
  CHECK(packalloc_free(cached.Alloc(1000)) == PACKALLOC_OK);
  packalloc_cache_stats stats = PACKALLOC_CACHE_STATS_INIT;
  CHECK(packalloc_get_cache_stats(cached.handle, &stats) == PACKALLOC_OK);
  CHECK(stats.hits == 1);
  CHECK(stats.misses == 1);
  CHECK(stats.cached_bytes == 1000);
  CHECK(packalloc_trim(cached.handle, 0) == PACKALLOC_OK);
  CHECK(packalloc_get_cache_stats(cached.handle, &stats) == PACKALLOC_OK);
  CHECK(stats.cached_bytes == 0);

  const Device plain("CPU");
  CHECK(packalloc_get_cache_stats(plain.handle, &stats) == PACKALLOC_UNIMPLEMENTED);
  CHECK(packalloc_trim(plain.handle, 0) == PACKALLOC_UNIMPLEMENTED);
  packalloc_allocator* layered = nullptr;
  REQUIRE(packalloc_add_layers(plain.handle, "lru:max_bytes=4KiB", &layered) == PACKALLOC_OK);
  CHECK(packalloc_get_cache_stats(layered, &stats) == PACKALLOC_OK);
  CHECK(packalloc_close(layered) == PACKALLOC_OK);
  CHECK(packalloc_add_layers(plain.handle, "nonsense", &layered) == PACKALLOC_NOT_FOUND);
  CHECK(layered == nullptr);
  CHECK(packalloc_add_layers(plain.handle, "lru:max_bytes=much", &layered) == PACKALLOC_INVALID_ARGUMENT);
}

struct Seen {
  std::vector<std::uint64_t> done;
  std::uint64_t total = 0;
  std::int32_t answer = 1;
};
std::int32_t Progress(void* user_data, std::uint64_t done, std::uint64_t total) {
  auto& seen = *static_cast<Seen*>(user_data);
  seen.done.push_back(done);
  seen.total = total;
  return seen.answer;
}

TEST_CASE("load: buffers from files, with progress, cancellation and errors") {
  const TempDir folder;
  const std::vector<unsigned char> bytes = Pattern(10000);
  const std::string path = folder.Write("weights.bin", std::string(bytes.begin(), bytes.end()));
  const Device cpu("CPU");
  const MockDevice gpu("", {.host_accessible = false});
  packalloc_buffer* a = cpu.Alloc(4096);
  packalloc_buffer* b = gpu.Alloc(5000);
  const std::array<packalloc_load_item, 2> items{{{a, path.c_str(), 1}, {b, path.c_str(), 5000}}};
  Seen seen;
  REQUIRE_MESSAGE(packalloc_load(items.data(), 2, Progress, &seen) == PACKALLOC_OK, packalloc_last_error());
  CHECK(seen.total == 9096);
  CHECK(seen.done.back() == 9096);
  CHECK(BytesOf(a) == std::vector<unsigned char>(bytes.begin() + 1, bytes.begin() + 4097));
  CHECK(BytesOf(b) == std::vector<unsigned char>(bytes.begin() + 5000, bytes.end()));
  CHECK(packalloc_load(items.data(), 2, nullptr, nullptr) == PACKALLOC_OK);
  CHECK(packalloc_load(nullptr, 0, nullptr, nullptr) == PACKALLOC_OK);

  seen.answer = 0;
  CHECK(packalloc_load(items.data(), 2, Progress, &seen) == PACKALLOC_CANCELLED);
  const auto load = [&](packalloc_buffer* dest, const char* from, std::uint64_t offset) {
    const packalloc_load_item item{dest, from, offset};
    return packalloc_load(&item, 1, nullptr, nullptr);
  };
  CHECK(load(b, path.c_str(), 5001) == PACKALLOC_OUT_OF_RANGE);
  CHECK(ErrorHas("item 0"));
  CHECK(ErrorHas("5000 bytes at byte 5001 were asked for, but the file has 10000 bytes"));
  CHECK(load(b, path.c_str(), UINT64_MAX) == PACKALLOC_OUT_OF_RANGE);
  CHECK(load(b, (folder / "none").c_str(), 0) == PACKALLOC_NOT_FOUND);
  CHECK(load(b, nullptr, 0) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(load(nullptr, path.c_str(), 0) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_load(nullptr, 1, nullptr, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_free(a) == PACKALLOC_OK);
  CHECK(packalloc_free(b) == PACKALLOC_OK);
}

TEST_CASE("memory info, synchronize, traits") {
  const Device cpu("CPU");
  packalloc_memory_info info{};
  CHECK(packalloc_get_memory_info(cpu.handle, &info) == PACKALLOC_OK);
  CHECK(info.total_bytes > 0);
  CHECK(info.free_bytes <= info.total_bytes);
  CHECK(packalloc_synchronize(cpu.handle) == PACKALLOC_OK);
  const MockDevice bare("", {.absent = {Member::kOffset, Member::kTransfer, Member::kHostPtr, Member::kMemoryInfo,
                                        Member::kSynchronize}});
  packalloc_traits traits = PACKALLOC_TRAITS_INIT;
  CHECK(packalloc_get_traits(bare.handle(), &traits) == PACKALLOC_OK);
  CHECK(traits.supports_offset + traits.supports_transfer + traits.supports_copy_from_disk + traits.supports_host_ptr ==
        0);
  packalloc_buffer* buffer = bare.Alloc(10);
  packalloc_buffer* view = nullptr;
  void* host = nullptr;
  CHECK(packalloc_offset(buffer, 1, 0, &view) == PACKALLOC_UNIMPLEMENTED);
  CHECK(packalloc_transfer(buffer, buffer, 1) == PACKALLOC_UNIMPLEMENTED);
  CHECK(packalloc_host_ptr(buffer, &host) == PACKALLOC_UNIMPLEMENTED);
  CHECK(packalloc_get_memory_info(bare.handle(), &info) == PACKALLOC_UNIMPLEMENTED);
  CHECK(packalloc_synchronize(bare.handle()) == PACKALLOC_OK);
  CHECK(packalloc_native_handle(bare.handle(), "cuda.stream", &host) == PACKALLOC_NOT_FOUND);
  CHECK(packalloc_free(buffer) == PACKALLOC_OK);
}

TEST_CASE("devices are listed, with their reasons") {
  std::vector<std::string> names;
  const auto visit = [](void* user_data, const packalloc_device* device) {
    CHECK(device->struct_size == sizeof *device);
    CHECK((device->available != 0 || *device->reason != '\0'));
    static_cast<std::vector<std::string>*>(user_data)->emplace_back(device->name);
  };
  CHECK(packalloc_list_devices(visit, &names) == PACKALLOC_OK);
  CHECK(std::find(names.begin(), names.end(), "CPU") != names.end());
  CHECK(packalloc_list_devices(nullptr, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  packalloc_allocator* best = nullptr;
  REQUIRE(packalloc_open_default(&best) == PACKALLOC_OK);
  CHECK(packalloc_close(best) == PACKALLOC_OK);
}

TEST_CASE("one name, two handles, one allocator") {
  const Device one("CPU");
  const Device other("cpu:0");
  CHECK(one.handle != other.handle);
  packalloc_buffer* a = one.Alloc(16);
  packalloc_buffer* b = other.Alloc(16);
  CHECK(packalloc_transfer(a, b, 16) == PACKALLOC_OK);
  CHECK(packalloc_free(a) == PACKALLOC_OK);
  CHECK(packalloc_free(b) == PACKALLOC_OK);
}

// ---- misuse ----

TEST_CASE("handles that are NULL, of the other kind, freed or made up are refused by every call") {
  const Device cpu("CPU+lru");
  packalloc_buffer* live = cpu.Alloc(16);
  packalloc_buffer* freed = cpu.Alloc(16);
  CHECK(packalloc_free(freed) == PACKALLOC_OK);
  CHECK(packalloc_free(freed) == PACKALLOC_INVALID_ARGUMENT);
  packalloc_allocator* closed = nullptr;
  REQUIRE(packalloc_open("CPU", &closed) == PACKALLOC_OK);
  CHECK(packalloc_close(closed) == PACKALLOC_OK);

  int local = 0;
  for (void* bad : {static_cast<void*>(nullptr), static_cast<void*>(cpu.handle), static_cast<void*>(freed),
                    static_cast<void*>(&local)}) {
    auto* buffer = static_cast<packalloc_buffer*>(bad);
    std::array<char, 16> bytes{};
    std::size_t nbytes = 0;
    packalloc_buffer* view = nullptr;
    packalloc_device_address address{};
    void* host = nullptr;
    CHECK(packalloc_free(buffer) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_nbytes(buffer, &nbytes) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_copyin(buffer, bytes.data(), 16) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_copyout(bytes.data(), buffer, 16) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_addr(buffer, &address) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_host_ptr(buffer, &host) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_offset(buffer, 1, 0, &view) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_transfer(buffer, live, 1) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_transfer(live, buffer, 1) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_copy(buffer, live, nullptr) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_copy(live, buffer, nullptr) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(*packalloc_last_error() != '\0');
  }
  for (void* bad : {static_cast<void*>(nullptr), static_cast<void*>(live), static_cast<void*>(closed),
                    static_cast<void*>(&local)}) {
    auto* allocator = static_cast<packalloc_allocator*>(bad);
    packalloc_buffer* buffer = nullptr;
    packalloc_allocator* layered = nullptr;
    packalloc_traits traits = PACKALLOC_TRAITS_INIT;
    packalloc_memory_info info{};
    packalloc_cache_stats stats = PACKALLOC_CACHE_STATS_INIT;
    packalloc_record record = PACKALLOC_RECORD_INIT;
    void* native = nullptr;
    CHECK(packalloc_alloc(allocator, 16, nullptr, &buffer) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_close(allocator) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_export(allocator, &record) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_add_layers(allocator, "lru", &layered) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_get_traits(allocator, &traits) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_get_memory_info(allocator, &info) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_synchronize(allocator) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_native_handle(allocator, "x", &native) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_get_cache_stats(allocator, &stats) == PACKALLOC_INVALID_ARGUMENT);
    CHECK(packalloc_trim(allocator, 0) == PACKALLOC_INVALID_ARGUMENT);
  }
  CHECK(packalloc_free(live) == PACKALLOC_OK);
}

TEST_CASE("a NULL where something is needed is an error") {
  const Device cpu("CPU");
  packalloc_buffer* buffer = cpu.Alloc(16);
  packalloc_allocator* allocator = nullptr;
  CHECK(packalloc_open("CPU", nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_open(nullptr, &allocator) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_open_default(nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_open_cuda("CUDA", nullptr, &allocator) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_open_opencl("CL", nullptr, &allocator) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_pack(nullptr, &allocator) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_export(cpu.handle, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_add_layers(cpu.handle, nullptr, &allocator) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_load_plugin(nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_get_traits(cpu.handle, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_get_memory_info(cpu.handle, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_native_handle(cpu.handle, nullptr, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_alloc(cpu.handle, 16, nullptr, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_offset(buffer, 1, 0, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_nbytes(buffer, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_copyin(buffer, nullptr, 1) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_copyin(buffer, nullptr, 0) == PACKALLOC_OK);
  CHECK(packalloc_copyout(nullptr, buffer, 1) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_copyout(nullptr, buffer, 0) == PACKALLOC_OK);
  CHECK(packalloc_addr(buffer, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_host_ptr(buffer, nullptr) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(packalloc_free(buffer) == PACKALLOC_OK);
}

TEST_CASE("bytes outside a buffer, and buffers of no bytes") {
  const Device cpu("CPU");
  packalloc_buffer* buffer = cpu.Alloc(16);
  std::array<char, 32> bytes{};
  packalloc_buffer* view = nullptr;
  CHECK(packalloc_copyin(buffer, bytes.data(), 17) == PACKALLOC_OUT_OF_RANGE);
  CHECK(packalloc_copyout(bytes.data(), buffer, 17) == PACKALLOC_OUT_OF_RANGE);
  CHECK(packalloc_offset(buffer, 1, 16, &view) == PACKALLOC_OUT_OF_RANGE);
  CHECK(packalloc_offset(buffer, 2, SIZE_MAX, &view) == PACKALLOC_OUT_OF_RANGE);
  CHECK(packalloc_offset(buffer, SIZE_MAX - 4, 8, &view) == PACKALLOC_OUT_OF_RANGE);
  CHECK(view == nullptr);
  REQUIRE(packalloc_offset(buffer, 8, 4, &view) == PACKALLOC_OK);
  packalloc_buffer* inner = nullptr;
  CHECK(packalloc_offset(view, 4, 6, &inner) == PACKALLOC_OUT_OF_RANGE);  // inside the buffer, not inside the view
  CHECK(packalloc_copyin(view, bytes.data(), 9) == PACKALLOC_OUT_OF_RANGE);
  REQUIRE(packalloc_offset(view, 0, 8, &inner) == PACKALLOC_OK);
  CHECK(packalloc_free(inner) == PACKALLOC_OK);
  CHECK(packalloc_free(view) == PACKALLOC_OK);
  CHECK(packalloc_free(buffer) == PACKALLOC_OK);
  packalloc_buffer* empty = cpu.Alloc(0);
  packalloc_buffer* other = cpu.Alloc(0);
  CHECK(empty != other);
  CHECK(packalloc_copyin(empty, nullptr, 0) == PACKALLOC_OK);
  CHECK(packalloc_copyout(nullptr, empty, 0) == PACKALLOC_OK);
  CHECK(packalloc_transfer(empty, other, 0) == PACKALLOC_OK);
  REQUIRE(packalloc_offset(empty, 0, 0, &view) == PACKALLOC_OK);
  CHECK(packalloc_free(view) == PACKALLOC_OK);
  CHECK(packalloc_free(other) == PACKALLOC_OK);
  packalloc_device_address address{1, 1};
  CHECK(packalloc_addr(empty, &address) == PACKALLOC_OK);
  CHECK(address.value == 0);
  CHECK(packalloc_copy(empty, empty, nullptr) == PACKALLOC_OK);
  CHECK(packalloc_free(empty) == PACKALLOC_OK);
}

TEST_CASE("the last error is the thread's own, says what happened, and stays while calls succeed") {
  packalloc_allocator* allocator = nullptr;
  CHECK(packalloc_open("NOSUCH:1", &allocator) == PACKALLOC_NOT_FOUND);
  CHECK(ErrorHas("NOSUCH"));
  std::thread([] { CHECK(std::string(packalloc_last_error()).empty()); }).join();
  CHECK(ErrorHas("NOSUCH"));
  { const Device cpu("CPU"); }
  CHECK(ErrorHas("NOSUCH"));

  // A long message is cut, between two characters.
  std::string name = "CPU+\"";
  for (int i = 0; i < 3000; ++i) name += "\xC3\xA4";
  CHECK(packalloc_load_plugin(name.c_str()) != PACKALLOC_OK);
  const std::string error = packalloc_last_error();
  CHECK(error.size() < 2048);
  CHECK(error.size() > 2000);
  CHECK(static_cast<unsigned char>(error.back()) != 0xC3);
}

TEST_CASE("the last error is UTF-8 also where a name is not") {
  // A part of a character, one longer than need be, a surrogate, beyond the last, and what is right.
  const std::string name = "/\x80|\xC3|\xC0\xAF|\xED\xA0\x80|\xF4\x90\x80\x80|\xE2\x82\xAC|\xF0\x9F\x98\x80|";
  CHECK(packalloc_load_plugin(name.c_str()) != PACKALLOC_OK);
  CHECK(ErrorHas("/?|?|??|???|????|\xE2\x82\xAC|\xF0\x9F\x98\x80|"));
  CHECK(packalloc_load_plugin(("/tmp/" + std::string(3000, '\x80')).c_str()) != PACKALLOC_OK);
  CHECK(std::string(packalloc_last_error()).size() == 2047);
}

TEST_CASE("names of statuses") {
  CHECK(std::string(packalloc_status_name(PACKALLOC_OK)) == "OK");
  CHECK(std::string(packalloc_status_name(PACKALLOC_UNAUTHENTICATED)) == "UNAUTHENTICATED");
  for (int code = 0; code <= 16; ++code) {
    CHECK(absl::StatusCodeToString(static_cast<absl::StatusCode>(code)) == packalloc_status_name(code));
  }
  CHECK(std::string(packalloc_status_name(17)) == "UNKNOWN_STATUS");
  CHECK(std::string(packalloc_status_name(-1)) == "UNKNOWN_STATUS");
  CHECK(std::string(packalloc_version()).find('.') != std::string::npos);
}

TEST_CASE("options of CUDA and OpenCL that make no sense") {
  packalloc_allocator* allocator = nullptr;
  packalloc_cuda_options cuda = PACKALLOC_CUDA_OPTIONS_INIT;
  int stream = 0;
  cuda.stream = &stream;
  CHECK(packalloc_open_cuda("CUDA", &cuda, &allocator) == PACKALLOC_INVALID_ARGUMENT);
  CHECK(ErrorHas("has_stream"));
  cuda = PACKALLOC_CUDA_OPTIONS_INIT;
  cuda.allocation = 2;
  CHECK(packalloc_open_cuda("CUDA", &cuda, &allocator) == PACKALLOC_INVALID_ARGUMENT);
  cuda = PACKALLOC_CUDA_OPTIONS_INIT;
  CHECK(packalloc_open_cuda("CPU", &cuda, &allocator) == PACKALLOC_INVALID_ARGUMENT);
  packalloc_opencl_options opencl = PACKALLOC_OPENCL_OPTIONS_INIT;
  CHECK(packalloc_open_opencl("CPU+lru", &opencl, &allocator) == PACKALLOC_INVALID_ARGUMENT);
  opencl.struct_size = 3;
  CHECK(packalloc_open_opencl("CL", &opencl, &allocator) == PACKALLOC_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace packalloc
