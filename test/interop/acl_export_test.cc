// Packed allocators as the allocators of streams, through libpackalloc_acl.
#include "packalloc/interop/acl_export.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/layers/lru.h"
#include "test/interop/acl_support.h"
#include "test/sanitizers.h"

namespace packalloc::testing {
namespace {

// A mock device, exported to a stream.
struct Exported {
  explicit Exported(MockOptions mock_options = {}, AclExportOptions options = {}) {
    Allocator<MockBuf> record = MockAllocator(std::move(mock_options));
    mock = Find<MockControl>(record);
    packed = *Pack(record);
    options.stream = acl.stream();
    options.functions = acl.functions();
    absl::StatusOr<AclRegistration> made = ExportAclAllocator(packed, options);
    REQUIRE_MESSAGE(made.ok(), made.status().ToString());
    registration.emplace(*std::move(made));
    callbacks = registration->callbacks();
    acl.TakeLog();
  }

  void* Alloc(std::size_t nbytes) const { return callbacks.alloc(callbacks.object, nbytes); }
  void* Advise(std::size_t nbytes, void* address) const {
    return callbacks.alloc_advise(callbacks.object, nbytes, address);
  }
  void Free(void* block) const { callbacks.free(callbacks.object, block); }
  void* Address(void* block) const { return callbacks.get_addr_from_block(block); }

  FakeAcl acl;
  std::shared_ptr<MockControl> mock;
  PackedAllocator packed;
  std::optional<AclRegistration> registration;
  AclCallbacks callbacks;
};

TEST_CASE("what is exported is what the stream has, all four callbacks, until it is unregistered") {
  Exported e;
  const AclCallbacks found = RegisteredWith(e.acl.stream());
  CHECK(found.object == e.callbacks.object);
  CHECK(found.object != nullptr);
  CHECK((found.alloc != nullptr && found.alloc == e.callbacks.alloc));
  CHECK((found.alloc_advise != nullptr && found.alloc_advise == e.callbacks.alloc_advise));
  CHECK((found.free != nullptr && found.free == e.callbacks.free));
  CHECK((found.get_addr_from_block != nullptr && found.get_addr_from_block == e.callbacks.get_addr_from_block));
  CHECK(e.registration->stream() == e.acl.stream());
  CHECK(e.registration->Unregister().ok());
  CHECK(RegisteredWith(e.acl.stream()).object == nullptr);
  CHECK(e.registration->Unregister().ok());
}

TEST_CASE("a block is a buffer of the allocator, at its device address, with the spec asked for") {
  Exported e({}, {.spec = {.host = true, .alignment = 512}});
  void* block = e.Alloc(1000);
  REQUIRE(block != nullptr);
  const auto live = e.mock->live();
  REQUIRE(live.size() == 1);
  CHECK(live[0].buf.nbytes == 1000);
  CHECK(live[0].spec == BufferSpec{.host = true, .alignment = 512});
  CHECK(reinterpret_cast<std::uintptr_t>(e.Address(block)) % 512 == 0);
  const AclExportStats stats = e.registration->stats();
  CHECK(stats.allocs == 1);
  CHECK(stats.live_bytes == 1000);
  CHECK(stats.live_blocks == 1);
  CHECK(e.registration->last_error().ok());
}

TEST_CASE("handles of opaque devices are the address of a block") {
  Exported e({.address_is_pointer = false});
  void* block = e.Alloc(64);
  REQUIRE(block != nullptr);
  CHECK(e.Address(block) != nullptr);
}

TEST_CASE("a request of 0 bytes gets a block with an address of its own") {
  Exported e;
  void* a = e.Alloc(0);
  void* b = e.Alloc(0);
  REQUIRE(a != nullptr);
  REQUIRE(b != nullptr);
  CHECK(e.Address(a) != nullptr);
  CHECK(e.Address(a) != e.Address(b));
}

TEST_CASE("freed blocks serve the same stream, and go back only after it has been synchronised") {
  Exported e;
  void* block = e.Alloc(1000);
  void* address = e.Address(block);
  e.Free(block);
  CHECK(e.mock->live_blocks() == 1);  // work that uses it may be pending
  CHECK(e.registration->stats().kept_bytes == 1000);
  void* again = e.Alloc(1000);
  CHECK(again != block);
  CHECK(e.Address(again) == address);
  CHECK(e.registration->stats().reused == 1);
  CHECK(e.registration->stats().kept_bytes == 0);
  e.Free(again);
  e.mock->OnCall(Member::kFree, [&e] {
    e.acl.Log("free");
    return absl::OkStatus();
  });
  CHECK(e.acl.TakeLog().empty());  // no callback has done anything on the stream
  CHECK(e.registration->Trim().ok());
  CHECK(e.acl.TakeLog() == std::vector<std::string>{"SynchronizeStream", "free"});
  CHECK(e.mock->live_blocks() == 0);
  CHECK(e.registration->stats().kept_blocks == 0);
}

TEST_CASE("a kept block serves a smaller request only if it wastes little, the last freed first") {
  Exported e;
  void* large = e.Alloc(10000);
  void* first = e.Alloc(8192);
  void* second = e.Alloc(8192);
  void* second_address = e.Address(second);
  for (void* block : {large, first, second}) e.Free(block);
  CHECK(e.Address(e.Alloc(8100)) == second_address);
  CHECK(e.registration->stats().reused == 1);
  e.Alloc(4096);
  CHECK(e.registration->stats().reused == 1);
  CHECK(e.mock->live_blocks() == 4);
}

TEST_CASE("advice is taken where a block is kept there, and is else an ordinary request") {
  Exported e;
  void* first = e.Alloc(8192);
  void* second = e.Alloc(8192);
  void* there = e.Address(first);
  e.Free(first);
  e.Free(second);
  void* block = e.Advise(100, there);
  CHECK(e.Address(block) == there);
  CHECK(e.registration->stats().advised == 1);
  void* other = e.Advise(100, there);  // in use by now
  REQUIRE(other != nullptr);
  CHECK(e.Address(other) != there);
  CHECK(e.Advise(100, nullptr) != nullptr);
  CHECK(e.Advise(9000, e.Address(second)) != nullptr);
  CHECK(e.registration->stats().advised == 1);
}

TEST_CASE("unregistered first, synchronised next, then the memory goes back, what CANN never freed too") {
  Exported e;
  void* held = e.Alloc(100);
  e.Free(e.Alloc(200));
  e.mock->OnCall(Member::kFree, [&e] {
    e.acl.Log("free");
    return absl::OkStatus();
  });
  e.registration.reset();
  CHECK(e.acl.TakeLog() == std::vector<std::string>{"Unregister", "SynchronizeStream", "free", "free"});
  CHECK(e.mock->live_blocks() == 0);
  CHECK(e.mock->misuses().empty());
  // CANN's own cache may let go of it later.
  CHECK(e.Address(held) == nullptr);
  e.Free(held);
  CHECK(e.Alloc(1) == nullptr);
  CHECK(e.mock->misuses().empty());
}

TEST_CASE("while the stream is being synchronised for the end nothing is given out, and nothing goes back early") {
  Exported e;
  void* held = e.Alloc(100);
  e.Free(e.Alloc(200));
  int calls = 0;
  e.acl.on_synchronize = [&] {
    ++calls;
    CHECK(e.Alloc(200) == nullptr);  // one is kept
    CHECK(e.Alloc(300) == nullptr);
    e.Free(held);
    CHECK(e.registration->stats().kept_blocks == 2);
    CHECK(e.mock->live_blocks() == 2);
  };
  CHECK(e.registration->Unregister().ok());
  CHECK(calls == 1);
  CHECK(e.mock->live_blocks() == 0);
  CHECK(e.mock->misuses().empty());
}

TEST_CASE("what Trim could not give back when the allocator ended meanwhile goes back all the same") {
  Exported e;
  e.Free(e.Alloc(200));
  bool inside = false;
  e.acl.on_synchronize = [&] {
    if (std::exchange(inside, true)) return;
    CHECK(e.registration->Unregister().ok());
    e.acl.faults["SynchronizeStream"] = 507899;  // of Trim
  };
  CHECK_FALSE(e.registration->Trim().ok());
  CHECK(e.mock->live_blocks() == 0);
  e.acl.faults.clear();
}

TEST_CASE("where the runtime refuses, nothing is given back, and it can be tried again") {
  for (const char* function : {"Unregister", "SynchronizeStream"}) {
    CAPTURE(function);
    Exported e;
    void* held = e.Alloc(100);
    e.Free(e.Alloc(200));
    e.acl.faults[function] = 107003;
    const absl::Status refused = e.registration->Unregister();
    CHECK(refused.code() == absl::StatusCode::kInternal);
    CHECK(Says(refused, "107003"));
    CHECK(Says(refused, function));
    CHECK(e.mock->live_blocks() == 2);
    CHECK(e.Address(held) != nullptr);
    e.acl.faults.clear();
    CHECK(e.registration->Unregister().ok());
    CHECK(e.mock->live_blocks() == 0);
  }
  Exported e;
  e.Free(e.Alloc(200));
  e.acl.faults["SynchronizeStream"] = 107003;
  CHECK_FALSE(e.registration->Trim().ok());
  CHECK(e.mock->live_blocks() == 1);
  CHECK(e.registration->stats().kept_bytes == 200);
  e.acl.faults.clear();
}

TEST_CASE("a destructor that the runtime refuses gives nothing back that the device may still use") {
  Exported e;
  e.Alloc(100);
  e.acl.faults["SynchronizeStream"] = 107003;
  e.registration.reset();
  CHECK(e.mock->live_blocks() == 1);
  CHECK(RegisteredWith(e.acl.stream()).object == nullptr);
  CHECK(e.Alloc(100) == nullptr);
}

TEST_CASE("a block that is just being looked at whether it can go back keeps a destructor from the end") {
  Exported e({}, {.max_kept_bytes = 0});
  e.acl.faults["SynchronizeStream"] = 500000;
  e.acl.on_query = [&] {
    CHECK(e.registration->stats().kept_bytes == 100);
    e.registration.reset();
  };
  e.Free(e.Alloc(100));
  CHECK_FALSE(e.registration.has_value());
  CHECK(e.mock->live_blocks() == 1);  // the stream was busy
}

TEST_CASE("blocks that the allocator refuses to free at the end are freed by the next Unregister") {
  Exported e;
  e.Alloc(100);
  e.Free(e.Alloc(200));
  e.Alloc(300);
  e.mock->FailAll(Member::kFree, absl::UnavailableError("link down"));
  for (int i = 0; i < 2; ++i) {
    CHECK(absl::IsUnavailable(e.registration->Unregister()));
    CHECK(e.registration->stats().kept_bytes == 600);
    CHECK(e.registration->stats().kept_blocks == 3);
    CHECK(e.registration->stats().live_blocks == 0);
  }
  CHECK(e.registration->stats().failed_frees == 6);
  e.mock->ClearFailures();
  CHECK(e.registration->Unregister().ok());
  CHECK(e.registration->stats().kept_blocks == 0);
  CHECK(e.mock->live_blocks() == 0);
  CHECK(e.mock->misuses().empty());
}

TEST_CASE("a stopped allocator asks the device for nothing") {
  Exported e;
  e.Alloc(100);
  e.acl.faults["SynchronizeStream"] = 500000;
  CHECK_FALSE(e.registration->Unregister().ok());
  CHECK(e.Alloc(1 << 20) == nullptr);
  CHECK(absl::IsFailedPrecondition(e.registration->last_error()));
  e.acl.faults.clear();
  e.mock->OnCall(Member::kFree, [&] {
    CHECK(e.Alloc(10) == nullptr);
    return absl::OkStatus();
  });
  CHECK(e.registration->Unregister().ok());
  CHECK(e.mock->log().Count(Member::kAlloc) == 1);
}

TEST_CASE("an allocator that another has replaced on the stream leaves that one there") {
  Exported e;
  AclExportOptions options{.stream = e.acl.stream(), .functions = e.acl.functions()};
  absl::StatusOr<AclRegistration> second = ExportAclAllocator(e.packed, options);
  REQUIRE(second.ok());
  CHECK(RegisteredWith(e.acl.stream()).object == second->callbacks().object);
  void* block = e.Alloc(10);
  e.registration.reset();
  CHECK(RegisteredWith(e.acl.stream()).object == second->callbacks().object);
  CHECK(e.Address(block) == nullptr);
  CHECK(second->Unregister().ok());
  CHECK(RegisteredWith(e.acl.stream()).object == nullptr);
}

TEST_CASE("blocks that are freed twice, foreign, of another object, or none are told apart and left alone") {
  Exported e;
  absl::StatusOr<AclRegistration> other =
      ExportAclAllocator(e.packed, {.stream = e.acl.stream(), .functions = e.acl.functions()});
  REQUIRE(other.ok());
  void* block = e.Alloc(100);
  void* theirs = other->callbacks().alloc(other->callbacks().object, 100);
  int local = 0;
  e.Free(nullptr);
  e.Free(&local);
  e.Free(theirs);
  CHECK(e.registration->stats().failed_frees == 3);
  CHECK(Says(e.registration->last_error(), "no live block"));
  CHECK(e.Address(nullptr) == nullptr);
  CHECK(e.Address(&local) == nullptr);
  CHECK(e.Address(theirs) != nullptr);
  e.Free(block);
  CHECK(e.Address(block) == nullptr);
  void* x = e.Alloc(100);
  e.Free(block);  // its memory is another's by now
  void* y = e.Alloc(100);
  CHECK(e.Address(x) != e.Address(y));
  CHECK(e.registration->stats().failed_frees == 4);
  // An object that is none.
  CHECK(e.callbacks.alloc(nullptr, 1) == nullptr);
  CHECK(e.callbacks.alloc(&local, 1) == nullptr);
  e.callbacks.free(&local, x);
  CHECK(e.Address(x) != nullptr);
}

TEST_CASE("a failed or throwing alloc is null, its reason kept, and nothing is held") {
  Exported e({.capacity_bytes = 1000});
  CHECK(e.Alloc(1001) == nullptr);
  CHECK(e.registration->last_error().code() == absl::StatusCode::kResourceExhausted);
  CHECK(e.Alloc(SIZE_MAX) == nullptr);
  CHECK(e.registration->last_error().code() == absl::StatusCode::kInvalidArgument);
  e.mock->ThrowNth(Member::kAlloc, 1, std::make_exception_ptr(std::runtime_error("thrown by the device")));
  CHECK(e.Alloc(10) == nullptr);
  CHECK(Says(e.registration->last_error(), "thrown by the device"));
  e.mock->ThrowNth(Member::kAlloc, 1, std::make_exception_ptr(42));
  CHECK(e.Alloc(10) == nullptr);
  e.mock->ThrowNth(Member::kAlloc, 1, std::make_exception_ptr(std::bad_alloc()));
  CHECK(e.Alloc(10) == nullptr);
  CHECK(e.registration->last_error().code() == absl::StatusCode::kResourceExhausted);
  e.mock->FailNth(Member::kAddr, 1, absl::InternalError("no address"));
  CHECK(e.Alloc(10) == nullptr);
  e.mock->ThrowNth(Member::kAddr, 1, std::make_exception_ptr(std::runtime_error("no address")));
  CHECK(e.Alloc(10) == nullptr);
  CHECK(e.registration->stats().failed_allocs == 7);
  CHECK(e.registration->stats().allocs == 0);
  CHECK(e.mock->live_blocks() == 0);
  CHECK(e.Alloc(1000) != nullptr);
}

TEST_CASE("memory that runs out is taken from kept blocks of an idle stream, and from a busy one never") {
  Exported e({.capacity_bytes = 1000});
  e.Free(e.Alloc(600));
  CHECK(e.Alloc(900) == nullptr);
  CHECK(Says(e.registration->last_error(), "600 bytes that were freed wait for the stream"));
  CHECK(e.mock->live_bytes() == 600);
  CHECK(e.acl.TakeLog() == std::vector<std::string>{"StreamQuery"});
  e.acl.busy = false;
  CHECK(e.Alloc(900) != nullptr);
  CHECK(e.mock->live_bytes() == 900);
  CHECK(e.acl.TakeLog() == std::vector<std::string>{"StreamQuery"});
}

// Has an allocation on another thread find memory exhausted; returns when that is so, not when it is done.
std::thread ExhaustedElsewhere(const Exported& e, std::size_t nbytes, void** block) {
  auto asked = std::make_shared<std::promise<void>>();
  auto done = std::make_shared<bool>(false);
  e.mock->OnCall(Member::kAlloc, [asked, done] {
    if (std::exchange(*done, true)) return absl::OkStatus();
    asked->set_value();
    return absl::ResourceExhaustedError("exhausted");
  });
  std::thread thread([&e, nbytes, block] { *block = e.Alloc(nbytes); });
  asked->get_future().wait();
  return thread;
}

TEST_CASE("an allocation gets the memory that another thread is just giving back, or cannot give back") {
  for (const bool refused : {false, true}) {
    CAPTURE(refused);
    Exported e({.capacity_bytes = 8192});
    e.Free(e.Alloc(8192));
    std::thread other;
    void* block = nullptr;
    e.acl.on_synchronize = [&] {
      CHECK(e.registration->stats().kept_bytes == 8192);
      CHECK(e.Alloc(8192) == nullptr);  // on this thread waiting would never end
      CHECK(Says(e.registration->last_error(), "8192 bytes that were freed wait for the stream"));
      if (refused) e.acl.faults["SynchronizeStream"] = 507899;
      other = ExhaustedElsewhere(e, 8192, &block);
    };
    CHECK(e.registration->Trim().ok() != refused);
    other.join();
    CHECK(block != nullptr);
    CHECK(e.registration->stats().reused == (refused ? 1 : 0));
    CHECK(e.registration->stats().kept_blocks == 0);
    CHECK(e.registration->stats().live_bytes == 8192);
    e.acl.on_synchronize = nullptr;
    e.acl.faults.clear();
  }
}

TEST_CASE("of two allocations that find memory exhausted one gives back for both") {
  Exported e({.capacity_bytes = 8192});
  for (void* block : {e.Alloc(4096), e.Alloc(4096)}) e.Free(block);
  e.acl.busy = false;
  std::thread other;
  void* block = nullptr;
  e.acl.on_query = [&] { other = ExhaustedElsewhere(e, 1024, &block); };
  CHECK(e.Alloc(1024) != nullptr);
  other.join();
  CHECK(block != nullptr);
  CHECK(e.mock->live_bytes() == 2048);
}

TEST_CASE("with free_at_once, too, an allocation waits for memory on its way back") {
  Exported e({.capacity_bytes = 8192}, {.free_at_once = true});
  void* first = e.Alloc(8192);
  std::thread other;
  void* block = nullptr;
  e.mock->OnCall(Member::kFree, [&] {
    other = ExhaustedElsewhere(e, 8192, &block);
    return absl::OkStatus();
  });
  e.Free(first);
  other.join();
  CHECK(block != nullptr);
  e.mock->ClearFailures();
}

TEST_CASE("above max_kept_bytes freed blocks go back as soon as the stream is idle") {
  Exported e({}, {.max_kept_bytes = 64 << 10});
  e.acl.busy = false;
  std::size_t most = 0;
  for (std::size_t i = 0; i < 500; ++i) {  // sizes that keep changing never fit what is kept
    e.Free(e.Alloc(1024 + 2000 * i));
    most = std::max(most, e.registration->stats().kept_bytes);
    CHECK(e.registration->stats().kept_bytes <= (64 << 10));
  }
  CHECK(most > 0);
  e.acl.busy = true;
  e.Free(e.Alloc(1 << 20));
  CHECK(e.registration->stats().kept_bytes >= (1 << 20));
}

TEST_CASE("a failing or throwing free of the allocator keeps the block for the next time") {
  for (const bool at_once : {false, true}) {
    CAPTURE(at_once);
    Exported e({}, {.free_at_once = at_once});
    void* block = e.Alloc(100);
    e.mock->FailNth(Member::kFree, 1, absl::InternalError("busy"));
    e.mock->ThrowNth(Member::kFree, 2, std::make_exception_ptr(std::runtime_error("thrown")));
    e.Free(block);
    if (!at_once) CHECK(Says(e.registration->Trim(), "busy"));
    CHECK(e.registration->stats().failed_frees == 1);
    CHECK(e.registration->stats().kept_blocks == 1);
    CHECK(Says(e.registration->Trim(), "thrown"));
    CHECK(e.registration->stats().kept_blocks == 1);
    CHECK(e.registration->Trim().ok());
    CHECK(e.mock->live_blocks() == 0);
  }
}

TEST_CASE("free_at_once gives to the allocator's own cache, without a call on the stream") {
  FakeAcl acl;
  const PackedAllocator cache = *Lru(*Pack(MockAllocator()));
  absl::StatusOr<AclRegistration> registration =
      ExportAclAllocator(cache, {.stream = acl.stream(), .functions = acl.functions(), .free_at_once = true});
  REQUIRE(registration.ok());
  acl.TakeLog();
  const AclCallbacks c = registration->callbacks();
  c.free(c.object, c.alloc(c.object, 4096));
  CHECK(Find<LruControl>(cache)->stats().cached_bytes == 4096);
  CHECK(c.alloc(c.object, 4096) != nullptr);
  CHECK(Find<LruControl>(cache)->stats().hits == 1);
  CHECK(acl.TakeLog().empty());
}

TEST_CASE("a registration that fails half-way leaves no descriptor and no object") {
  for (const char* function :
       {"CreateDesc", "SetObj", "SetAlloc", "SetAllocAdvise", "SetFree", "SetGetAddr", "Register"}) {
    CAPTURE(function);
    FakeAcl acl;  // counts descriptors
    acl.faults[function] = 200000;
    const absl::Status status =
        ExportAclAllocator(*Pack(MockAllocator()), {.stream = acl.stream(), .functions = acl.functions()}).status();
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    CHECK(Says(status, function));
    CHECK(RegisteredWith(acl.stream()).object == nullptr);
    for (const std::string& call : acl.TakeLog()) CHECK(call != "SynchronizeStream");
  }
}

TEST_CASE("the codes of the runtime are statuses that a program can act on") {
  for (const auto& [code, wanted] :
       std::vector<std::pair<int, absl::StatusCode>>{{100000, absl::StatusCode::kInvalidArgument},
                                                     {200000, absl::StatusCode::kResourceExhausted},
                                                     {207001, absl::StatusCode::kResourceExhausted},
                                                     {507899, absl::StatusCode::kInternal}}) {
    FakeAcl acl;
    acl.faults["Register"] = code;
    const absl::Status status =
        ExportAclAllocator(*Pack(MockAllocator()), {.stream = acl.stream(), .functions = acl.functions()}).status();
    CHECK(status.code() == wanted);
    CHECK(Says(status, std::to_string(code)));
  }
}

TEST_CASE("what cannot be exported is refused, by name") {
  FakeAcl acl;
  const PackedAllocator packed = *Pack(MockAllocator());
  const AclExportOptions good{.stream = acl.stream(), .functions = acl.functions()};
  CHECK(ExportAclAllocator(PackedAllocator(), good).status().code() == absl::StatusCode::kFailedPrecondition);
  AclExportOptions bad = good;
  bad.stream = nullptr;
  CHECK(ExportAclAllocator(packed, bad).status().code() == absl::StatusCode::kInvalidArgument);
  for (const BufferSpec& spec :
       {BufferSpec{.zero = true}, BufferSpec{.external_ptr = 64}, BufferSpec{.alignment = 3}}) {
    bad = good;
    bad.spec = spec;
    CHECK(ExportAclAllocator(packed, bad).status().code() == absl::StatusCode::kInvalidArgument);
  }
  bad = good;
  bad.functions->aclrtAllocatorSetAllocAdviseFuncToDesc = nullptr;
  bad.functions->aclrtSynchronizeStream = nullptr;
  const absl::Status incomplete = ExportAclAllocator(packed, bad).status();
  CHECK(incomplete.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Says(incomplete, "aclrtAllocatorSetAllocAdviseFuncToDesc, aclrtSynchronizeStream"));
  bad = good;
  bad.functions->aclrtAllocatorGetByStream = nullptr;
  bad.functions->aclrtStreamQuery = nullptr;
  bad.functions->aclrtMemcpy = nullptr;
  absl::StatusOr<AclRegistration> older = ExportAclAllocator(packed, bad);
  REQUIRE(older.ok());
  CHECK(older->Unregister().ok());
}

TEST_CASE("a moved-from registration is empty; moving onto one ends it") {
  Exported e;
  AclRegistration moved = *std::move(e.registration);
  CHECK(e.registration->Unregister().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(e.registration->Trim().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(e.registration->callbacks().object == nullptr);
  CHECK(e.registration->stats().allocs == 0);
  CHECK(e.registration->stream() == nullptr);
  CHECK(moved.callbacks().object == e.callbacks.object);
  FakeAcl* const acl = &e.acl;
  absl::StatusOr<AclRegistration> next =
      ExportAclAllocator(e.packed, {.stream = acl->stream(), .functions = acl->functions()});
  REQUIRE(next.ok());
  void* block = e.Alloc(1);
  moved = *std::move(next);
  CHECK(e.Address(block) == nullptr);
  CHECK(RegisteredWith(acl->stream()).object == moved.callbacks().object);
}

TEST_CASE("the registration keeps the allocator") {
  Exported e;
  e.packed = PackedAllocator();
  CHECK(e.Alloc(10) != nullptr);
}

TEST_CASE("the functions are found in the library that an option or the environment names") {
  const PackedAllocator packed = *Pack(MockAllocator());
  FakeAcl acl;
  const absl::Status absent =
      ExportAclAllocator(packed, {.stream = acl.stream(), .library = "/nonexistent/libascendcl.so"}).status();
  CHECK(absent.code() == absl::StatusCode::kUnavailable);
  CHECK(Says(absent, "no /nonexistent/libascendcl.so"));

  absl::StatusOr<AclRegistration> named =
      ExportAclAllocator(packed, {.stream = acl.stream(), .library = PACKALLOC_ACL_LIBRARY});
  REQUIRE_MESSAGE(named.ok(), named.status().ToString());
  CHECK(RegisteredWith(acl.stream()).object == named->callbacks().object);
  CHECK(named->Unregister().ok());

  setenv("PACKALLOC_LIBASCENDCL", PACKALLOC_ACL_LIBRARY, 1);
  absl::StatusOr<AclRegistration> found = ExportAclAllocator(packed, {.stream = acl.stream()});
  REQUIRE_MESSAGE(found.ok(), found.status().ToString());
  CHECK(found->Unregister().ok());
  setenv("PACKALLOC_LIBASCENDCL", "/nonexistent/from/environment.so", 1);
  CHECK(Says(LoadAclFunctions().status(), "/nonexistent/from/environment.so"));
  unsetenv("PACKALLOC_LIBASCENDCL");
}

TEST_CASE("the runtime that the program is linked with is found without a name, and bounds what is kept") {
  const absl::StatusOr<AclFunctions> linked = LoadAclFunctions();
  REQUIRE_MESSAGE(linked.ok(), linked.status().ToString());
  CHECK((linked->aclrtMemcpy == &aclrtMemcpy));
  CHECK(linked->library.find("libpackalloc_acl") != std::string::npos);

  FakeAcl acl;
  AclRegistration registration =
      *ExportAclAllocator(*Pack(MockAllocator()), {.stream = acl.stream(), .max_kept_bytes = 4096});
  const AclCallbacks callbacks = registration.callbacks();
  for (std::size_t nbytes = 1000; nbytes < 10000; nbytes += 1000) {
    callbacks.free(callbacks.object, callbacks.alloc(callbacks.object, nbytes));
    CHECK(registration.stats().kept_bytes <= 4096);
  }
  CHECK(registration.Unregister().ok());
}

TEST_CASE("a library without the functions is unavailable, and each that is missing is named") {
  const PackedAllocator packed = *Pack(MockAllocator());
  int stream = 0;
  const absl::Status status =
      ExportAclAllocator(packed, {.stream = &stream, .library = PACKALLOC_ACL_INCOMPLETE}).status();
  CHECK(status.code() == absl::StatusCode::kUnavailable);
  CHECK(Says(status, PACKALLOC_ACL_INCOMPLETE));
  CHECK(Says(status, "aclrtAllocatorRegister, aclrtAllocatorUnregister"));
  CHECK_FALSE(std::string(status.message()).find("aclrtAllocatorCreateDesc") != std::string::npos);
}

TEST_CASE("callbacks on several threads, with memory given back and taken off meanwhile: every byte is its owner's") {
  FakeAcl acl;
  acl.busy = false;
  absl::StatusOr<AclRegistration> registration = ExportAclAllocator(
      *Pack(CpuAllocator()), {.stream = acl.stream(), .functions = acl.functions(), .max_kept_bytes = 64 << 10});
  REQUIRE(registration.ok());
  const AclCallbacks c = registration->callbacks();
  std::atomic<int> foreign{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned id = 1; id <= 4; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random(id);
      std::vector<std::pair<unsigned char*, void*>> held;
      for (int i = 0; i < 3000; ++i) {
        if (held.size() < 8) {
          const std::size_t nbytes = 64u << (random() % 6);
          void* block = c.alloc_advise(c.object, nbytes, nullptr);
          auto* bytes = static_cast<unsigned char*>(c.get_addr_from_block(block));
          std::memset(bytes, static_cast<int>(id), 64);
          held.emplace_back(bytes, block);
        } else {
          const std::size_t which = random() % held.size();
          for (int b = 0; b < 64; ++b) foreign += held[which].first[b] != id;
          c.free(c.object, held[which].second);
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
    });
  }
  std::thread trimmer([&] {
    while (!stop) CHECK(registration->Trim().ok());
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  trimmer.join();
  CHECK(foreign == 0);
  CHECK(registration->stats().live_blocks == registration->stats().allocs - registration->stats().frees);
  CHECK(registration->stats().failed_frees == 0);

  // Late callbacks against Unregister, from two threads.
  std::vector<std::thread> late;
  for (int i = 0; i < 2; ++i) {
    late.emplace_back([&c] {
      for (;;) {
        void* block = c.alloc(c.object, 128);
        if (block == nullptr) return;
        c.free(c.object, block);
      }
    });
  }
  std::vector<std::thread> ends;
  for (int i = 0; i < 2; ++i) ends.emplace_back([&] { CHECK(registration->Unregister().ok()); });
  for (std::thread& thread : ends) thread.join();
  for (std::thread& thread : late) thread.join();
  CHECK(registration->stats().live_blocks == 0);
}

#if PACKALLOC_FORKS_AMONG_THREADS
TEST_CASE("a child forked while another thread gives back finds memory exhausted, and does not wait for that thread") {
  Exported e({.capacity_bytes = 8192});
  e.Free(e.Alloc(8192));
  int status = -1;
  e.acl.on_synchronize = [&] {
    std::thread([&] {
      const pid_t child = fork();
      if (child == 0) {
        alarm(20);
        const bool null = e.Alloc(4096) == nullptr;
        _exit(null && e.registration->Trim().ok() ? 0 : 1);
      }
      waitpid(child, &status, 0);
    }).join();
  };
  CHECK(e.registration->Trim().ok());
  e.acl.on_synchronize = nullptr;
  CHECK(status == 0);
}
#endif

}  // namespace
}  // namespace packalloc::testing
