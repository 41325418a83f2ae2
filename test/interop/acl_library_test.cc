// libpackalloc_acl from a program that knows nothing but its header: codes, misuse, several devices and threads.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "packalloc/c/acl.h"
#include "test/in_child.h"
#include "test/sanitizers.h"

namespace {

bool LastErrorHas(const std::string& text) {
  const bool found = std::string(packalloc_acl_last_error()).find(text) != std::string::npos;
  if (!found) MESSAGE(std::string(packalloc_acl_last_error()));
  return found;
}

// A stream of a device with an allocator.
struct Device {
  explicit Device(const char* name) {
    REQUIRE_MESSAGE(packalloc_acl_create_stream(name, &stream) == ACL_SUCCESS, packalloc_acl_last_error());
    REQUIRE_MESSAGE(packalloc_acl_create_allocator(stream, &memory) == ACL_SUCCESS, packalloc_acl_last_error());
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() {
    if (memory != nullptr) CHECK(packalloc_acl_destroy_allocator(memory) == ACL_SUCCESS);
    CHECK(packalloc_acl_destroy_stream(stream) == ACL_SUCCESS);
  }
  void* Alloc(std::size_t nbytes) const { return packalloc_acl_alloc(memory, nbytes); }
  static void* Address(void* block) { return packalloc_acl_get_addr_from_block(block); }
  aclrtStream stream = nullptr;
  aclrtAllocator memory = nullptr;
};

void* Alloc(void*, size_t) { return nullptr; }
void* AllocAdvise(void*, size_t, void*) { return nullptr; }
void Free(void*, void*) {}
void* GetAddr(void* block) { return block; }

// A descriptor with everything set but for the advice.
aclrtAllocatorDesc Described(void* object) {
  aclrtAllocatorDesc desc = aclrtAllocatorCreateDesc();
  REQUIRE(desc != nullptr);
  CHECK(aclrtAllocatorSetObjToDesc(desc, object) == ACL_SUCCESS);
  CHECK(aclrtAllocatorSetAllocFuncToDesc(desc, &Alloc) == ACL_SUCCESS);
  CHECK(aclrtAllocatorSetFreeFuncToDesc(desc, &Free) == ACL_SUCCESS);
  CHECK(aclrtAllocatorSetGetAddrFromBlockFuncToDesc(desc, &GetAddr) == ACL_SUCCESS);
  return desc;
}

void* ObjectOf(aclrtStream stream) {
  aclrtAllocatorDesc desc = nullptr;
  aclrtAllocator object = nullptr;
  const aclError code = aclrtAllocatorGetByStream(stream, &desc, &object, nullptr, nullptr, nullptr, nullptr);
  return code == ACL_SUCCESS ? object : nullptr;
}

TEST_CASE("descriptors: NULL, freed and made-up ones, and NULL values are 100000") {
  aclrtAllocatorDesc desc = aclrtAllocatorCreateDesc();
  REQUIRE(desc != nullptr);
  int object = 0;
  CHECK(aclrtAllocatorSetObjToDesc(desc, nullptr) == 100000);
  CHECK(LastErrorHas("allocator is NULL"));
  CHECK(aclrtAllocatorSetAllocFuncToDesc(desc, nullptr) == 100000);
  CHECK(aclrtAllocatorSetAllocAdviseFuncToDesc(desc, nullptr) == 100000);
  CHECK(aclrtAllocatorSetFreeFuncToDesc(desc, nullptr) == 100000);
  CHECK(aclrtAllocatorSetGetAddrFromBlockFuncToDesc(desc, nullptr) == 100000);
  CHECK(aclrtAllocatorDestroyDesc(desc) == 0);
  for (aclrtAllocatorDesc bad : {aclrtAllocatorDesc{nullptr}, desc, aclrtAllocatorDesc{&object}}) {
    CHECK(aclrtAllocatorDestroyDesc(bad) == 100000);
    CHECK(aclrtAllocatorSetObjToDesc(bad, &object) == 100000);
    CHECK(aclrtAllocatorSetAllocFuncToDesc(bad, &Alloc) == 100000);
    CHECK(aclrtAllocatorSetAllocAdviseFuncToDesc(bad, &AllocAdvise) == 100000);
    CHECK(aclrtAllocatorSetFreeFuncToDesc(bad, &Free) == 100000);
    CHECK(aclrtAllocatorSetGetAddrFromBlockFuncToDesc(bad, &GetAddr) == 100000);
    CHECK(aclrtAllocatorRegister(&object, bad) == 100000);
  }
}

TEST_CASE("registering needs the object and three functions, copies the descriptor, and the last one wins") {
  int stream = 0;
  int first = 0;
  int second = 0;
  aclrtAllocatorDesc desc = aclrtAllocatorCreateDesc();
  CHECK(aclrtAllocatorRegister(&stream, desc) == 100000);
  CHECK(LastErrorHas("no object"));
  CHECK(aclrtAllocatorSetObjToDesc(desc, &first) == 0);
  CHECK(aclrtAllocatorRegister(&stream, desc) == 100000);
  CHECK(LastErrorHas("no alloc function"));
  CHECK(aclrtAllocatorSetAllocFuncToDesc(desc, &Alloc) == 0);
  CHECK(aclrtAllocatorRegister(&stream, desc) == 100000);
  CHECK(LastErrorHas("no free function"));
  CHECK(aclrtAllocatorSetFreeFuncToDesc(desc, &Free) == 0);
  CHECK(aclrtAllocatorRegister(&stream, desc) == 100000);
  CHECK(LastErrorHas("no get_addr_from_block function"));
  CHECK(ObjectOf(&stream) == nullptr);
  CHECK(aclrtAllocatorSetGetAddrFromBlockFuncToDesc(desc, &GetAddr) == 0);
  CHECK(aclrtAllocatorRegister(nullptr, desc) == 100000);
  CHECK(aclrtAllocatorRegister(&stream, desc) == 0);

  CHECK(aclrtAllocatorSetObjToDesc(desc, &second) == 0);  // the copy does not see it
  CHECK(ObjectOf(&stream) == &first);
  aclrtAllocatorDesc other = Described(&second);
  CHECK(aclrtAllocatorSetAllocAdviseFuncToDesc(other, &AllocAdvise) == 0);
  CHECK(aclrtAllocatorRegister(&stream, other) == 0);
  CHECK(aclrtAllocatorDestroyDesc(other) == 0);
  aclrtAllocatorDesc found = nullptr;
  aclrtAllocator object = nullptr;
  aclrtAllocatorAllocFunc alloc = nullptr;
  aclrtAllocatorFreeFunc free = nullptr;
  aclrtAllocatorAllocAdviseFunc advise = nullptr;
  aclrtAllocatorGetAddrFromBlockFunc get_addr = nullptr;
  CHECK(aclrtAllocatorGetByStream(&stream, &found, &object, &alloc, &free, &advise, &get_addr) == 0);
  CHECK(found == other);
  CHECK(object == &second);
  CHECK((alloc == &Alloc));
  CHECK((free == &Free));
  CHECK((advise == &AllocAdvise));
  CHECK((get_addr == &GetAddr));
  CHECK(aclrtAllocatorGetByStream(&stream, nullptr, &object, nullptr, nullptr, nullptr, nullptr) == 100000);
  CHECK(aclrtAllocatorGetByStream(nullptr, &found, &object, nullptr, nullptr, nullptr, nullptr) == 100000);

  CHECK(aclrtAllocatorUnregister(&stream) == 0);
  CHECK(aclrtAllocatorUnregister(&stream) == 0);
  CHECK(aclrtAllocatorUnregister(&first) == 0);  // never had one
  CHECK(aclrtAllocatorUnregister(nullptr) == 100000);
  CHECK(aclrtAllocatorGetByStream(&stream, &found, &object, nullptr, nullptr, nullptr, nullptr) == 100000);
  CHECK(aclrtAllocatorDestroyDesc(desc) == 0);
}

TEST_CASE("streams: of no device, unknown, adopted twice, of a device that is not there") {
  aclrtStream stream = &stream;
  CHECK(packalloc_acl_create_stream("NOSUCH", &stream) == 100000);
  CHECK(stream == nullptr);
  CHECK(LastErrorHas("NOSUCH"));
  CHECK(packalloc_acl_create_stream("CPU", nullptr) == 100000);
  int key = 0;
  CHECK(aclrtSynchronizeStream(nullptr) == 100000);
  CHECK(aclrtSynchronizeStream(&key) == 100000);
  aclrtStreamStatus status = 7;
  CHECK(aclrtStreamQuery(nullptr, &status) == 100000);
  CHECK(aclrtStreamQuery(&key, &status) == 100000);
  CHECK(status == 7);
  CHECK(packalloc_acl_destroy_stream(&key) == 100000);
  CHECK(packalloc_acl_destroy_stream(nullptr) == 100000);
  aclrtAllocator memory = &key;
  CHECK(packalloc_acl_create_allocator(&key, &memory) == 100000);
  CHECK(memory == nullptr);
  CHECK(packalloc_acl_adopt_stream("CPU", nullptr) == 100000);
  CHECK(packalloc_acl_adopt_stream(nullptr, &key) == 100000);
  CHECK(packalloc_acl_adopt_stream("not a name", &key) == 100000);
  CHECK(packalloc_acl_adopt_stream("CPU+lru", &key) == 0);
  CHECK(packalloc_acl_adopt_stream("CPU", &key) == 100000);
  CHECK(LastErrorHas("already"));
  CHECK(aclrtSynchronizeStream(&key) == 0);
  CHECK(aclrtStreamQuery(&key, nullptr) == 100000);
  CHECK(aclrtStreamQuery(&key, &status) == 0);
  CHECK(status == ACL_STREAM_STATUS_COMPLETE);
  CHECK(packalloc_acl_create_allocator(&key, nullptr) == 100000);
  CHECK(packalloc_acl_create_allocator(&key, &memory) == 0);

  aclrtAllocatorDesc desc = Described(memory);
  CHECK(aclrtAllocatorRegister(&key, desc) == 0);
  CHECK(aclrtAllocatorDestroyDesc(desc) == 0);
  CHECK(packalloc_acl_destroy_stream(&key) == 0);
  CHECK(ObjectOf(&key) == nullptr);  // or the next stream at this address would have it
  CHECK(packalloc_acl_alloc(memory, 10) != nullptr);
  CHECK(packalloc_acl_destroy_allocator(memory) == 0);
  CHECK(packalloc_acl_destroy_allocator(memory) == 100000);
  CHECK(packalloc_acl_destroy_allocator(nullptr) == 100000);
  CHECK(packalloc_acl_destroy_allocator(&key) == 100000);

  setenv("PACKALLOC_DEVICE", "MOCK", 1);
  CHECK(packalloc_acl_create_stream(nullptr, &stream) == 0);
  unsetenv("PACKALLOC_DEVICE");
  CHECK(packalloc_acl_destroy_stream(stream) == 0);
}

TEST_CASE("addresses are pointers where the allocator's are, or else the stream's; of neither it is not known") {
  const Device device("CPU");
  int unknown = 0;
  CHECK(packalloc_acl_address_is_pointer(nullptr, device.memory) == 1);
  CHECK(packalloc_acl_address_is_pointer(device.stream, &unknown) == 1);
  CHECK(packalloc_acl_address_is_pointer(&unknown, &unknown) == 0);
  CHECK(packalloc_acl_address_is_pointer(nullptr, nullptr) == 0);
}

TEST_CASE("allocators: exhausted, freed twice, destroyed with live blocks") {
  Device device("CPU+limited:max_bytes=1000");
  CHECK(device.Alloc(1001) == nullptr);
  CHECK(LastErrorHas("1001"));
  void* block = device.Alloc(600);
  REQUIRE(block != nullptr);
  CHECK(device.Alloc(600) == nullptr);
  packalloc_acl_free(device.memory, block);
  packalloc_acl_free(device.memory, block);
  packalloc_acl_free(device.memory, nullptr);
  CHECK(Device::Address(block) == nullptr);
  block = packalloc_acl_alloc_advise(device.memory, 600, Device::Address(block));
  CHECK(block != nullptr);
  CHECK(packalloc_acl_alloc(nullptr, 1) == nullptr);
  CHECK(packalloc_acl_alloc(&device, 1) == nullptr);
  CHECK(packalloc_acl_destroy_allocator(device.memory) == ACL_SUCCESS);
  CHECK(Device::Address(block) == nullptr);
  CHECK(device.Alloc(1) == nullptr);
  packalloc_acl_free(device.memory, block);
  CHECK(packalloc_acl_create_allocator(device.stream, &device.memory) == ACL_SUCCESS);
  CHECK(device.Alloc(1000) != nullptr);  // all of it went back
}

TEST_CASE("aclrtMemcpy: between the host and blocks, inside them, and nowhere else") {
  Device device("CPU");
  auto* block = static_cast<unsigned char*>(Device::Address(device.Alloc(100)));
  std::array<unsigned char, 100> host{};
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<unsigned char>(i);
  std::array<unsigned char, 100> back{};
  CHECK(aclrtMemcpy(block, 100, host.data(), 100, ACL_MEMCPY_HOST_TO_DEVICE) == 0);
  CHECK(aclrtMemcpy(back.data(), 10, block + 90, 10, ACL_MEMCPY_DEVICE_TO_HOST) == 0);
  CHECK(back[0] == 90);
  CHECK(aclrtMemcpy(block + 1, 99, block, 99, ACL_MEMCPY_DEVICE_TO_DEVICE) == 0);  // as memmove
  CHECK(aclrtMemcpy(back.data(), 100, block, 100, ACL_MEMCPY_DEVICE_TO_HOST) == 0);
  CHECK(back[99] == 98);
  CHECK(aclrtMemcpy(host.data(), 100, back.data(), 100, ACL_MEMCPY_HOST_TO_HOST) == 0);
  CHECK(host == back);
  CHECK(aclrtMemcpy(block, 0, host.data(), 0, ACL_MEMCPY_HOST_TO_DEVICE) == 0);

  for (unsigned char* device_address : {block, block + 99}) {
    CHECK(aclrtMemcpy(device_address, 1, host.data(), 1, ACL_MEMCPY_HOST_TO_HOST) == 100000);
    CHECK(LastErrorHas("dst of aclrtMemcpy is a device address"));
    CHECK(aclrtMemcpy(device_address, 1, host.data(), 1, ACL_MEMCPY_DEVICE_TO_HOST) == 100000);
    CHECK(aclrtMemcpy(host.data(), 1, device_address, 1, ACL_MEMCPY_HOST_TO_HOST) == 100000);
    CHECK(LastErrorHas("src of aclrtMemcpy is a device address"));
  }

  CHECK(aclrtMemcpy(block, 99, host.data(), 100, ACL_MEMCPY_HOST_TO_DEVICE) == 100000);
  CHECK(LastErrorHas("99"));
  CHECK(aclrtMemcpy(block + 1, 100, host.data(), 100, ACL_MEMCPY_HOST_TO_DEVICE) == 100000);
  CHECK(aclrtMemcpy(block + 100, 1, host.data(), 1, ACL_MEMCPY_HOST_TO_DEVICE) == 100000);
  CHECK(aclrtMemcpy(nullptr, 1, host.data(), 1, ACL_MEMCPY_HOST_TO_DEVICE) == 100000);
  CHECK(aclrtMemcpy(block, 1, nullptr, 1, ACL_MEMCPY_HOST_TO_DEVICE) == 100000);
  CHECK(aclrtMemcpy(host.data(), 1, host.data(), 1, ACL_MEMCPY_HOST_TO_DEVICE) == 100000);
  CHECK(LastErrorHas("no live block"));
  CHECK(aclrtMemcpy(host.data(), 1, host.data(), 1, ACL_MEMCPY_DEVICE_TO_HOST) == 100000);
  CHECK(aclrtMemcpy(block, 1, host.data(), 1, ACL_MEMCPY_DEVICE_TO_DEVICE) == 100000);
  CHECK(aclrtMemcpy(block, 1, host.data(), 1, 8) == 100000);
  CHECK(aclrtMemcpy(block, 1, host.data(), 1, -1) == 100000);
  CHECK(LastErrorHas("-1"));
}

TEST_CASE("aclrtMemcpy by what the addresses say, and by the newer kinds") {
  Device device("MOCK");
  void* a = Device::Address(device.Alloc(8));
  void* b = Device::Address(device.Alloc(8));
  const std::array<unsigned char, 8> one{1, 2, 3};
  std::array<unsigned char, 8> back{};
  CHECK(aclrtMemcpy(a, 8, one.data(), 8, ACL_MEMCPY_DEFAULT) == 0);
  CHECK(aclrtMemcpy(b, 8, a, 8, ACL_MEMCPY_DEFAULT) == 0);
  CHECK(aclrtMemcpy(back.data(), 8, b, 8, ACL_MEMCPY_DEFAULT) == 0);
  CHECK(back == one);
  std::array<unsigned char, 8> host{};
  CHECK(aclrtMemcpy(host.data(), 8, back.data(), 8, ACL_MEMCPY_DEFAULT) == 0);
  CHECK(host == one);
  host.fill(9);
  CHECK(aclrtMemcpy(a, 8, host.data(), 8, ACL_MEMCPY_HOST_TO_BUF_TO_DEVICE) == 0);
  CHECK(aclrtMemcpy(b, 8, a, 8, ACL_MEMCPY_INNER_DEVICE_TO_DEVICE) == 0);
  CHECK(aclrtMemcpy(a, 8, b, 8, ACL_MEMCPY_INTER_DEVICE_TO_DEVICE) == 0);
  CHECK(aclrtMemcpy(back.data(), 8, a, 8, ACL_MEMCPY_DEVICE_TO_HOST) == 0);
  CHECK(back == host);
}

TEST_CASE("aclrtMemcpy from one device to another") {
  Device cpu("CPU");
  Device mock("MOCK");
  void* a = Device::Address(cpu.Alloc(1000));
  void* b = Device::Address(mock.Alloc(1000));
  std::vector<unsigned char> host(1000, 7);
  CHECK(aclrtMemcpy(a, 1000, host.data(), 1000, ACL_MEMCPY_HOST_TO_DEVICE) == 0);
  CHECK(aclrtMemcpy(b, 1000, a, 1000, ACL_MEMCPY_DEVICE_TO_DEVICE) == 0);
  std::vector<unsigned char> back(1000);
  CHECK(aclrtMemcpy(back.data(), 1000, b, 1000, ACL_MEMCPY_DEVICE_TO_HOST) == 0);
  CHECK(back == host);
}

TEST_CASE("from several threads, streams come and go and blocks are nobody else's") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  Device shared("CPU+lru");
  for (unsigned char id = 1; id <= 4; ++id) {
    threads.emplace_back([&, id] {
      std::array<unsigned char, 64> bytes{};
      for (int i = 0; i < 300; ++i) {
        aclrtStream stream = nullptr;
        wrong += packalloc_acl_create_stream("CPU", &stream) != 0;
        aclrtAllocatorDesc desc = Described(shared.memory);
        wrong += aclrtAllocatorRegister(stream, desc) != 0;
        wrong += aclrtAllocatorDestroyDesc(desc) != 0;
        wrong += ObjectOf(stream) != shared.memory;
        void* block = packalloc_acl_alloc(shared.memory, 64);
        bytes.fill(id);
        wrong += aclrtMemcpy(Device::Address(block), 64, bytes.data(), 64, ACL_MEMCPY_HOST_TO_DEVICE) != 0;
        bytes.fill(0);
        wrong += aclrtMemcpy(bytes.data(), 64, Device::Address(block), 64, ACL_MEMCPY_DEVICE_TO_HOST) != 0;
        for (unsigned char byte : bytes) wrong += byte != id;
        packalloc_acl_free(shared.memory, block);
        wrong += packalloc_acl_destroy_stream(stream) != 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("the reason why an allocation failed is this thread's, also while others of the same object fail") {
  const Device shared("CPU");
  std::atomic<int> wrong{0};
  std::atomic<int> running{0};
  std::vector<std::thread> threads;
  for (std::size_t id = 0; id < 4; ++id) {
    threads.emplace_back([&, id] {
      const std::size_t nbytes = SIZE_MAX - id;
      ++running;
      while (running < 4) std::this_thread::yield();
      for (int i = 0; i < 50000; ++i) {
        wrong += shared.Alloc(nbytes) != nullptr;
        wrong += std::string(packalloc_acl_last_error()).find(std::to_string(nbytes)) == std::string::npos;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

#if PACKALLOC_FORKS_AMONG_THREADS
TEST_CASE("a forked child uses streams, descriptors and blocks while the parent's threads do") {
  const Device shared("CPU+lru");
  const auto use = [&shared] {
    bool ok = aclrtSynchronizeStream(shared.stream) == ACL_SUCCESS;
    aclrtAllocatorDesc desc = aclrtAllocatorCreateDesc();
    ok = ok && aclrtAllocatorDestroyDesc(desc) == ACL_SUCCESS;
    void* block = shared.Alloc(64);
    ok = ok && block != nullptr;
    packalloc_acl_free(shared.memory, block);
    return ok;
  };
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int t = 0; t < 2; ++t) {
    busy.emplace_back([&] {
      while (!stop) use();
    });
  }
  for (int i = 0; i < 50; ++i) {
    CHECK(packalloc::HoldsInChild([&use] {
      bool ok = true;
      for (int n = 0; n < 100; ++n) ok = ok && use();
      return ok;
    }));
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
}
#endif

}  // namespace
