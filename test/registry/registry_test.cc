#include "packalloc/registry.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <any>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lib/registry/builtin_backends.h"
#include "lib/registry/layer_table.h"
#include "packalloc/layers/lru.h"
#include "test/in_child.h"
#include "test/sanitizers.h"

namespace packalloc {
namespace {

struct TestOptions {
  int value = 0;
};

// A heap record that counts how many of its kind are alive.
absl::StatusOr<PackedAllocator> Heap(const std::string& name, const std::shared_ptr<void>& token = nullptr) {
  Allocator<void*> heap;
  heap.traits.name = name;
  heap.alloc = [token](std::size_t n, const BufferSpec&) -> absl::StatusOr<void*> { return std::malloc(n); };
  heap.free = [](void* const& p, std::size_t, const BufferSpec&) {
    std::free(p);
    return absl::OkStatus();
  };
  heap.copyin = [](void* const& p, absl::Span<const std::byte> src) {
    std::memcpy(p, src.data(), src.size());
    return absl::OkStatus();
  };
  heap.copyout = [](absl::Span<std::byte> dest, void* const& p) {
    std::memcpy(dest.data(), p, dest.size());
    return absl::OkStatus();
  };
  heap.addr = [](void* const& p) { return DeviceAddress{reinterpret_cast<std::uintptr_t>(p), 0}; };
  return Pack(heap);
}

// A backend under a name of its own, as the registry keeps it for the life of the process.
Backend NewBackend() {
  static int last = 0;
  Backend backend;
  backend.name = "TEST" + std::to_string(++last);
  backend.open = [name = backend.name](const OpenRequest& request) { return Heap(name + ":" + request.target); };
  return backend;
}

struct SetVariable {
  SetVariable(const char* name, const std::string& value) : name(name) { setenv(name, value.c_str(), 1); }
  ~SetVariable() { unsetenv(name); }
  const char* name;
};

bool Contains(const absl::Status& status, const std::string& text) {
  const bool found = std::string(status.message()).find(text) != std::string::npos;
  if (!found) MESSAGE(status.ToString());
  return found;
}

DeviceInfo Listed(const std::string& name) {
  for (const DeviceInfo& device : Devices()) {
    if (device.name == name) return device;
  }
  FAIL(name << " is not listed");
  return {};
}

TEST_CASE("a name gives the same allocator each time") {
  Backend backend = NewBackend();
  int opened = 0;
  backend.open = [&opened](const OpenRequest& request) {
    ++opened;
    return Heap("T:" + request.target);
  };
  backend.canonical_target = [](const std::string& target) -> absl::StatusOr<std::string> {
    if (target.empty()) return std::string("0");
    if (target != "0" && target != "1")
      return absl::InvalidArgumentError("device number '" + target + "' is not 0 or 1");
    return target;
  };
  const std::string name = backend.name;
  REQUIRE(Register(backend).ok());

  const PackedAllocator first = *Open(name);
  CHECK(*Open(name) == first);
  CHECK(*Open(name + ":0") == first);
  CHECK(*Open(name + ":\"0\"") == first);
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  CHECK(*Open(lower) == first);
  CHECK(opened == 1);
  CHECK(first.name() == "T:0");
  CHECK_FALSE(*Open(name + ":1") == first);
  CHECK(opened == 2);
  CHECK(Contains(Open(name + ":7").status(), "device number '7'"));
  CHECK(opened == 2);

  Shutdown();
  CHECK_FALSE(*Open(name) == first);
}

TEST_CASE("Shutdown releases what nobody holds") {
  const auto token = std::make_shared<int>();
  Backend backend = NewBackend();
  std::weak_ptr<void> alive = token;
  backend.open = [&alive](const OpenRequest&) { return Heap("T", alive.lock()); };
  REQUIRE(Register(backend).ok());
  const long before = token.use_count();
  absl::StatusOr<PackedAllocator> held = Open(backend.name);
  CHECK(token.use_count() > before);
  Shutdown();
  CHECK(token.use_count() > before);
  held = absl::UnknownError("");
  CHECK(token.use_count() == before);
}

TEST_CASE("options give an allocator of one's own") {
  Backend backend = NewBackend();
  backend.open = [](const OpenRequest& request) -> absl::StatusOr<PackedAllocator> {
    if (!request.options.has_value()) return Heap("plain");
    const TestOptions* options = std::any_cast<TestOptions>(&request.options);
    if (options == nullptr) return absl::InvalidArgumentError("options of another backend");
    return Heap("own" + std::to_string(options->value));
  };
  REQUIRE(Register(backend).ok());
  const PackedAllocator shared = *Open(backend.name);
  const PackedAllocator a = *Open(backend.name, TestOptions{3});
  const PackedAllocator b = *Open(backend.name, TestOptions{3});
  CHECK(a.name() == "own3");
  CHECK_FALSE(a == b);
  CHECK_FALSE(a == shared);
  CHECK(*Open(backend.name) == shared);
  CHECK(Open(backend.name, 42).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_FALSE(*Open(backend.name, std::any()) == shared);
}

TEST_CASE("what is not known is named, with what is") {
  const Backend backend = NewBackend();
  REQUIRE(Register(backend).ok());
  const absl::Status unknown = Open("NOSUCH:1+lru").status();
  CHECK(unknown.code() == absl::StatusCode::kNotFound);
  CHECK(Contains(unknown, "'NOSUCH:1+lru'"));
  CHECK(Open("N" + std::string(10000, 'x')).status().message().size() < 1000);
  CHECK(Open("CPU: 0").status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Contains(unknown, "no backend 'NOSUCH'"));
  CHECK(Contains(unknown, backend.name));

  const absl::Status layer = Open(backend.name + "+nosuch").status();
  CHECK(layer.code() == absl::StatusCode::kNotFound);
  CHECK(Contains(layer, "no layer 'nosuch'"));
  for (const std::string& known : LayerNames()) CHECK(Contains(layer, known));

  std::string many;
  for (int i = 0; i < 32; ++i) many += "+counted";
  CHECK(Open(backend.name + many).ok());
  const absl::Status too_many = Open(backend.name + many + "+counted").status();
  CHECK(too_many.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Contains(too_many, "33 layers; at most 32"));

  CHECK(Open(backend.name + "+").status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(Open("").status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("two threads that open one name get the same one, opened once") {
  constexpr int kThreads = 4;
  Backend backend = NewBackend();
  std::atomic<int> opened{0};
  backend.open = [&opened](const OpenRequest&) {
    ++opened;
    return Heap("T");
  };
  REQUIRE(Register(backend).ok());
  for (int round = 0; round < 20; ++round) {
    Shutdown();
    opened = 0;
    std::latch go(kThreads);
    std::vector<PackedAllocator> got(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        go.arrive_and_wait();
        if (absl::StatusOr<PackedAllocator> device = Open(backend.name); device.ok()) got[i] = *device;
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(opened == 1);
    for (const PackedAllocator& device : got) {
      CHECK(device);
      CHECK(device == got[0]);
    }
  }
}

TEST_CASE("an open that fails or throws leaves nothing behind, and its waiters try for themselves") {
  Backend backend = NewBackend();
  std::atomic<int> calls{0};
  backend.open = [&calls](const OpenRequest&) -> absl::StatusOr<PackedAllocator> {
    switch (++calls) {
      case 1:
        return absl::UnavailableError("no driver today");
      case 2:
        throw std::runtime_error("thrown by open");
      case 3:
        return PackedAllocator();
      default:
        return Heap("T");
    }
  };
  REQUIRE(Register(backend).ok());
  CHECK(Open(backend.name).status() == absl::UnavailableError("no driver today"));
  CHECK_THROWS_WITH_AS(Open(backend.name).status().IgnoreError(), "thrown by open", std::runtime_error);
  CHECK(Open(backend.name).status().code() == absl::StatusCode::kInternal);
  CHECK(Open(backend.name).ok());
  CHECK(Open(backend.name).ok());
  CHECK(calls == 4);

  Shutdown();
  calls = 0;
  std::atomic<int> ok{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      try {
        if (Open(backend.name).ok()) ++ok;
      } catch (const std::runtime_error&) {
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(calls == 4);
  CHECK(ok == 1);
}

TEST_CASE("a backend may open others, and is told when it needs itself") {
  Backend inner = NewBackend();
  Backend outer = NewBackend();
  outer.open = [&](const OpenRequest& request) -> absl::StatusOr<PackedAllocator> {
    return Open(request.target == "self" ? outer.name + ":self" : inner.name);
  };
  REQUIRE(Register(inner).ok());
  REQUIRE(Register(outer).ok());
  CHECK(*Open(outer.name) == *Open(inner.name));
  CHECK(Open(outer.name + ":self").status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Open(outer.name + ":self").status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("two threads that open what the other one opens end with an error, not with a wait for ever") {
  Backend a = NewBackend();
  Backend b = NewBackend();
  std::latch both(2);
  std::once_flag a_met;
  std::once_flag b_met;
  a.open = [&](const OpenRequest&) {
    std::call_once(a_met, [&] { both.arrive_and_wait(); });
    return Open(b.name);
  };
  // Whoever waited for the other tries for himself, so either may come here again.
  b.open = [&](const OpenRequest&) {
    std::call_once(b_met, [&] { both.arrive_and_wait(); });
    return Open(a.name);
  };
  REQUIRE(Register(a).ok());
  REQUIRE(Register(b).ok());
  absl::Status of_a;
  absl::Status of_b;
  std::thread thread([&] { of_a = Open(a.name).status(); });
  of_b = Open(b.name).status();
  thread.join();
  CHECK(of_a.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(of_b.code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a backend can register and shut down from inside its own open") {
  Backend inner = NewBackend();
  Backend outer = NewBackend();
  outer.open = [&](const OpenRequest&) -> absl::StatusOr<PackedAllocator> {
    if (absl::Status registered = Register(inner); !registered.ok()) return registered;
    Shutdown();
    return Open(inner.name);
  };
  REQUIRE(Register(outer).ok());
  CHECK(Open(outer.name).ok());
  // Shutdown came while it was being opened, so it was not kept.
  CHECK(Open(outer.name).status().code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("what cannot be registered") {
  Backend backend = NewBackend();
  REQUIRE(Register(backend).ok());
  CHECK(Register(backend).code() == absl::StatusCode::kAlreadyExists);
  for (const char* name : {"", "lower", "1A", "A-B", "A:B", "A B"}) {
    Backend bad = NewBackend();
    bad.name = name;
    CAPTURE(name);
    CHECK(Register(bad).code() == absl::StatusCode::kInvalidArgument);
  }
  Backend without_open = NewBackend();
  without_open.open = nullptr;
  CHECK(Register(without_open).code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("every backend is listed, with the reason where it does not work") {
  Backend plain = NewBackend();
  Backend absent = NewBackend();
  absent.devices = [name = absent.name] {
    return std::vector<DeviceInfo>{{.name = name, .available = false, .reason = "no driver"}};
  };
  Backend throwing = NewBackend();
  throwing.devices = []() -> std::vector<DeviceInfo> { throw std::runtime_error("broken"); };
  Backend empty = NewBackend();
  empty.devices = [] { return std::vector<DeviceInfo>(); };
  for (const Backend& backend : {plain, absent, throwing, empty}) REQUIRE(Register(backend).ok());

  CHECK(Listed(plain.name).available);
  CHECK_FALSE(Listed(absent.name).available);
  CHECK(Listed(absent.name).reason == "no driver");
  CHECK_FALSE(Listed(throwing.name).available);
  CHECK(Listed(throwing.name).reason.find("broken") != std::string::npos);
  CHECK_FALSE(Listed(empty.name).available);
}

TEST_CASE("a backend that was left out of the build says why") {
  const Backend backend = internal::LeftOutBackend("CL", "no OpenCL headers");
  const std::vector<DeviceInfo> devices = backend.devices();
  REQUIRE(devices.size() == 1);
  CHECK(devices[0].name == "CL");
  CHECK_FALSE(devices[0].available);
  CHECK(devices[0].reason == "not in this build: no OpenCL headers");
  const absl::Status opened = backend.open({}).status();
  CHECK(opened.code() == absl::StatusCode::kUnavailable);
  CHECK(Contains(opened, "no OpenCL headers"));
}

TEST_CASE("the built-in backends keep the registry's rules") {
  std::vector<std::string> names;
  for (const Backend& backend : internal::BuiltinBackends()) {
    CAPTURE(backend.name);
    CHECK(Open(backend.name + "+nosuch").status().code() == absl::StatusCode::kNotFound);
    CHECK(std::find(names.begin(), names.end(), backend.name) == names.end());
    names.push_back(backend.name);
    for (const DeviceInfo& device : backend.devices()) {
      CAPTURE(device.name);
      CHECK(device.name.rfind(backend.name, 0) == 0);
      CHECK(device.available == device.reason.empty());
    }
  }
}

TEST_CASE("the default is the first that works by rank, unless PACKALLOC_DEVICE says otherwise") {
  Backend broken = NewBackend();
  Backend good = NewBackend();
  broken.default_rank = 1;
  good.default_rank = 1;
  bool works = false;
  int broken_calls = 0;
  broken.open = [&](const OpenRequest&) -> absl::StatusOr<PackedAllocator> {
    ++broken_calls;
    if (works) return Heap("late");
    return absl::UnavailableError("no driver");
  };
  REQUIRE(Register(broken).ok());
  {
    const SetVariable set("PACKALLOC_DEVICE", broken.name);
    const absl::Status status = Default().status();
    CHECK(status.code() == absl::StatusCode::kUnavailable);
    CHECK(Contains(status, "PACKALLOC_DEVICE=" + broken.name + ": no driver"));
  }
  for (const char* bad : {"NOSUCH", "CPU+nosuch", " ", "-1", "CPU:"}) {
    CAPTURE(bad);
    const SetVariable set("PACKALLOC_DEVICE", bad);
    CHECK(Contains(Default().status(), std::string("PACKALLOC_DEVICE=") + bad));
  }
  REQUIRE(Register(good).ok());
  {
    const SetVariable set("PACKALLOC_DEVICE", good.name);
    CHECK(*Default() == *Open(good.name));
  }
  {
    const SetVariable set("PACKALLOC_DEVICE", "DISK:/none\x1b[2J");
    const absl::Status named = Default().status();
    CHECK(Contains(named, "PACKALLOC_DEVICE=DISK:/none\\x1b[2J"));
    CHECK(named.message().find('\x1b') == absl::string_view::npos);
  }
  const SetVariable unset("PACKALLOC_DEVICE", "");
  const absl::StatusOr<PackedAllocator> chosen = Default();
  REQUIRE(chosen.ok());
  const int calls = broken_calls;
  works = true;
  CHECK(*Default() == *chosen);
  CHECK(broken_calls == calls);
  Shutdown();
}

TEST_CASE("a cache by name: its statistics, its parameters, its identity") {
  const Backend backend = NewBackend();
  REQUIRE(Register(backend).ok());
  const std::string name = backend.name;
  const PackedAllocator cached = *Open(name + "+lru:max_bytes=1KiB,policy=gds,max_waste=0.125");
  CHECK(*Open(name + "+lru:policy=gds,max_waste=0.125,max_bytes=1KiB") == cached);
  CHECK_FALSE(*Open(name + "+lru") == cached);
  CHECK_FALSE(*Open(name) == cached);
  // One device under both.
  CHECK(cached.same_transfer_domain(*Open(name)));
  const std::shared_ptr<LruControl> control = Find<LruControl>(cached);
  REQUIRE(control != nullptr);
  CHECK(Find<LruControl>(*Open(name)) == nullptr);
  for (const std::size_t nbytes : {std::size_t{1024}, std::size_t{1025}}) {
    const absl::StatusOr<AnyBuf> buf = cached.alloc(nbytes);
    REQUIRE(buf.ok());
    CHECK(cached.free(*buf, nbytes).ok());
    CHECK(control->stats().cached_bytes <= 1024);
  }
  for (const char* bad :
       {"max_byte=1", "max_bytes=64MB", "policy=fifo", "max_waste=0,5", "max_waste=-1", "max_waste=2"}) {
    CAPTURE(bad);
    CHECK(Open(name + "+lru:" + bad).status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(Contains(Open(name + "+lru:max_byte=1").status(), "it has max_bytes, policy, max_waste"));
  const SetVariable set("PACKALLOC_LAYERS", "lru:max_bytes=2KiB");
  CHECK(Find<LruControl>(*Open(name)) != nullptr);
  CHECK(Find<LruControl>(*Open(name, TestOptions{})) != nullptr);
  Shutdown();
}

TEST_CASE("layers of the environment that do not work are left out") {
  const Backend backend = NewBackend();
  REQUIRE(Register(backend).ok());
  const PackedAllocator bare = *Open(backend.name);
  for (const char* bad : {"nosuch", "+", "lru:max_byte", " ", "LRU"}) {
    CAPTURE(bad);
    const SetVariable set("PACKALLOC_LAYERS", bad);
    CHECK(*Open(backend.name) == bare);
    CHECK(Open(backend.name, TestOptions{}).ok());
  }
}

TEST_CASE("layers of the environment that open what they lie on come to an end") {
  Backend backend = NewBackend();
  backend.shared = false;
  REQUIRE(Register(backend).ok());
  const SetVariable set("PACKALLOC_LAYERS", "fallback:to=" + backend.name);
  const absl::StatusOr<PackedAllocator> device = Open(backend.name);
  REQUIRE(device.ok());
  const absl::StatusOr<AnyBuf> buf = device->alloc(16);
  REQUIRE(buf.ok());
  CHECK(device->free(*buf, 16).ok());
}

#if !PACKALLOC_WITH_TSAN
TEST_CASE("a child that is forked while another thread opens a device opens it itself") {
  std::latch inside(1);
  std::latch go_on(1);
  const pid_t parent = getpid();
  Backend backend = NewBackend();
  backend.open = [&](const OpenRequest&) {
    if (getpid() == parent) {
      inside.count_down();
      go_on.wait();
    }
    return Heap("T");
  };
  const std::string name = backend.name;
  REQUIRE(Register(std::move(backend)).ok());
  std::thread opener([&] { CHECK(Open(name).ok()); });
  inside.wait();
  CHECK(HoldsInChild([&] { return Open(name).ok() && Open(name + "+lru").ok() && !Devices().empty(); }));
  go_on.count_down();
  opener.join();
  CHECK(Open(name).ok());
}

TEST_CASE("a child that is forked inside its thread's own open goes on with it") {
  Backend backend = NewBackend();
  const std::string name = backend.name;
  bool held = false;
  backend.open = [&](const OpenRequest&) {
    held = HoldsInChild([&] { return Open(name).status().code() == absl::StatusCode::kFailedPrecondition; });
    return Heap("T");
  };
  REQUIRE(Register(std::move(backend)).ok());
  CHECK(Open(name).ok());
  CHECK(held);
}
#endif

}  // namespace
}  // namespace packalloc
