// Callbacks of others as records: the contract, and callbacks that fail, throw or lie.
#include "packalloc/interop/acl_import.h"

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/interop/acl_export.h"
#include "packalloc/layers/lru.h"
#include "packalloc/testing/contract.h"
#include "test/interop/acl_support.h"
#include "test/testing/mock_subject.h"

namespace packalloc::testing {
namespace {

// An allocator as a framework writes one for CANN: a block is the struct that describes it.
class HeapAllocator {
 public:
  struct Block {
    HeapAllocator* owner;
    std::byte* memory;
  };

  AclCallbacks callbacks() {
    return {this, [](void* self, std::size_t n) { return static_cast<HeapAllocator*>(self)->Alloc(n); },
            [](void* self, std::size_t n, void* address) {
              auto* heap = static_cast<HeapAllocator*>(self);
              const std::lock_guard lock(heap->mutex);
              heap->advised.push_back(address);
              return heap->take_advice ? heap->AllocLocked(n) : nullptr;
            },
            [](void* self, void* block) { static_cast<HeapAllocator*>(self)->Free(static_cast<Block*>(block)); },
            [](void* block) -> void* {
              auto* typed = static_cast<Block*>(block);
              if (typed->owner->throws_address) throw std::runtime_error("no address");
              return typed->owner->no_address ? nullptr : typed->memory;
            }};
  }

  std::mutex mutex;
  std::set<Block*> live;
  int allocs = 0;
  int foreign_frees = 0;
  bool exhausted = false;
  bool throws_alloc = false;  // once
  bool no_address = false;
  bool throws_address = false;
  bool take_advice = true;
  std::vector<void*> advised;

 private:
  void* Alloc(std::size_t nbytes) {
    const std::lock_guard lock(mutex);
    return AllocLocked(nbytes);
  }
  void* AllocLocked(std::size_t nbytes) {
    ++allocs;
    if (std::exchange(throws_alloc, false)) throw std::runtime_error("thrown by the device");
    if (exhausted) return nullptr;
    auto* memory = static_cast<std::byte*>(std::malloc(nbytes));
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0xCB, std::min<std::size_t>(nbytes, 4096));
    return *live.insert(new Block{this, memory}).first;
  }
  void Free(Block* block) {
    const std::lock_guard lock(mutex);
    if (live.erase(block) == 0) {
      ++foreign_frees;
      return;
    }
    std::free(block->memory);
    delete block;
  }
};

AclCopyFunctions HostCopies(bool transfer = true) {
  AclCopyFunctions copies;
  copies.copyin = [](void* dest, absl::Span<const std::byte> src) {
    std::memcpy(dest, src.data(), src.size());
    return absl::OkStatus();
  };
  copies.copyout = [](absl::Span<std::byte> dest, const void* src) {
    std::memcpy(dest.data(), src, dest.size());
    return absl::OkStatus();
  };
  if (transfer) {
    copies.transfer = [](void* dest, const void* src, std::size_t nbytes) {
      std::memmove(dest, src, nbytes);
      return absl::OkStatus();
    };
  }
  return copies;
}

// Of the copies here only those by aclrtMemcpy go in chunks, of 1 MiB.
constexpr std::size_t kLarge = (std::size_t{1} << 18) + 13;
constexpr std::size_t kChunked = (std::size_t{2} << 20) + 13;

ContractOptions Without(std::initializer_list<const char*> members, bool hooks = false) {
  ContractOptions options;
  options.large_bytes = kLarge;
  if (!hooks) options.skips = WithoutHooks();
  for (const char* member : members) options.skips.merge(WithoutMember(member));
  return options;
}

// The hooks of the suite, on a heap that outlives the records.
ContractOptions WithHooks(const std::shared_ptr<HeapAllocator>& heap, std::initializer_list<const char*> members) {
  ContractOptions options = Without(members, true);
  options.live_blocks = [heap] { return heap->live.size(); };
  options.driver_calls = [heap] { return static_cast<std::size_t>(heap->allocs); };
  options.throw_in_next_alloc = [heap] { heap->throws_alloc = true; };
  options.exhaust_in_next_alloc = [heap] { heap->exhausted = true; };
  options.stop_exhausting = [heap] { heap->exhausted = false; };
  return options;
}

// AddressSanitizer's malloc ends the program where it is asked for too much.
AclImportOptions Bounded() { return {.max_alloc_bytes = std::size_t{1} << 30}; }

TEST_CASE("with the caller's copies the record keeps the contract, raw, packed, and under the cache") {
  const auto heap = std::make_shared<HeapAllocator>();
  const auto import = [heap] { return FromAclCallbacks(heap->callbacks(), HostCopies(), Bounded()); };
  const ContractOptions options = WithHooks(heap, {"copy_from_disk", "host_ptr", "memory_info"});
  RunContract(import, options);
  RunContract([&] { return Pack(*import()); }, options);
  RunContract([&] { return Lru(*Pack(*import())); }, Without({"copy_from_disk", "host_ptr", "memory_info"}));
  CHECK(heap->live.empty());
  CHECK(heap->foreign_frees == 0);
}

TEST_CASE("by aclrtMemcpy the record keeps the contract") {
  FakeAcl acl;
  void* memory = nullptr;
  REQUIRE(packalloc_acl_create_allocator(acl.stream(), &memory) == ACL_SUCCESS);
  const AclCallbacks callbacks{memory, &packalloc_acl_alloc, &packalloc_acl_alloc_advise, &packalloc_acl_free,
                               &packalloc_acl_get_addr_from_block};
  const auto import = [&](void* stream) {
    return FromAclCallbacks(callbacks, acl.functions(), {.min_alignment = 64, .stream = stream});
  };
  ContractOptions options = Without({"copy_from_disk", "host_ptr", "memory_info"});
  for (const char* clause : {"spec.external_ptr", "spec.external_ptr_not_freed", "spec.external_ptr_not_cached",
                             "spec.external_ptr_other_fields"}) {
    options.skips[clause] = "aclrtMemcpy copies to device addresses, which the suite's memory has none of";
  }
  RunContract([&] { return import(nullptr); }, options);
  options.large_bytes = kChunked;
  RunContract([&] { return import(acl.stream()); }, options);
  RunContract([&] { return Pack(*import(acl.stream())); }, options);
  CHECK(packalloc_acl_destroy_allocator(memory) == ACL_SUCCESS);
}

TEST_CASE("over the memory of an allocator that takes addresses the record keeps the contract") {
  const auto heap = std::make_shared<HeapAllocator>();
  const auto import = [heap] { return FromAclCallbacks(heap->callbacks(), *Pack(CpuAllocator()), Bounded()); };
  RunContract(import, Without({"memory_info"}));
  RunContract([&] { return Pack(*import()); }, Without({"memory_info"}));
  CHECK(heap->live.empty());
}

TEST_CASE("out by one way and in by the other the record keeps the contract: eager, lazy, handles, as a GPU") {
  for (const MockOptions& mock :
       {MockOptions{}, MockOptions{.lazy = true}, MockOptions{.address_is_pointer = false, .lazy = true},
        MockOptions{.host_accessible = false, .lazy = true}}) {
    CAPTURE(mock.lazy);
    CAPTURE(mock.address_is_pointer);
    FakeAcl acl;
    const MockSubject subject(mock);
    std::vector<AclRegistration> registrations;
    const auto import = [&] {
      const PackedAllocator packed = *Pack(subject());
      registrations.push_back(
          *ExportAclAllocator(packed, {.stream = acl.stream(), .functions = acl.functions(), .free_at_once = true}));
      return FromAclCallbacks(registrations.back().callbacks(), packed, {.min_alignment = 64});
    };
    ContractOptions options = subject.Options();
    options.large_bytes = kLarge;
    options.skips = {{"alloc.exceptions_pass", "no exception leaves a callback: it becomes null"},
                     {"memory_info.sane", "the callbacks have no such function"},
                     {"alloc.alignment", "a mock's made-up addresses and its host memory are aligned apart"},
                     {"alloc.alignment_after_reuse", "so"}};
    if (!mock.address_is_pointer) {
      for (const char* clause : {"spec.external_ptr", "spec.external_ptr_not_freed", "spec.external_ptr_not_cached"}) {
        options.skips[clause] = "a pointer is no handle of the device";
      }
    }
    if (!mock.host_accessible) {
      for (const char* clause :
           {"host_ptr.reads", "host_ptr.writes", "host_ptr.own_memory", "host_ptr.follows_offset"}) {
        options.skips[clause] = "the memory was exported without `host`";
      }
    }
    RunContract(import, options);
  }
}

// ---- what the callbacks answer ----

PackedAllocator Packed(HeapAllocator& heap, const AclImportOptions& options = {}) {
  absl::StatusOr<Allocator<AclBlock>> record = FromAclCallbacks(heap.callbacks(), HostCopies(), options);
  REQUIRE_MESSAGE(record.ok(), record.status().ToString());
  return *Pack(*std::move(record));
}

TEST_CASE("null is RESOURCE_EXHAUSTED, so that a cache gives back and tries again") {
  HeapAllocator heap;
  const PackedAllocator cache = *Lru(Packed(heap));
  const AnyBuf first = *cache.alloc(1000);
  CHECK(cache.free(first, 1000).ok());
  CHECK(heap.live.size() == 1);
  heap.exhausted = true;
  const absl::Status none = cache.alloc(2000).status();
  CHECK(none.code() == absl::StatusCode::kResourceExhausted);
  CHECK(Says(none, "2000"));
  CHECK(heap.live.empty());  // the cache gave back what it had
}

TEST_CASE("a block without an address is an error, and the block goes back") {
  HeapAllocator heap;
  const PackedAllocator packed = Packed(heap);
  heap.no_address = true;
  CHECK(packed.alloc(10).status().code() == absl::StatusCode::kInternal);
  CHECK(heap.live.empty());
}

TEST_CASE("what a callback throws passes through, and no block is lost") {
  HeapAllocator heap;
  const PackedAllocator packed = Packed(heap);
  heap.throws_alloc = true;
  CHECK_THROWS_WITH(packed.alloc(10).status().IgnoreError(), "thrown by the device");
  heap.throws_address = true;
  CHECK_THROWS_WITH(packed.alloc(10).status().IgnoreError(), "no address");
  CHECK(heap.live.empty());
  heap.throws_address = false;
  const AnyBuf buffer = *packed.alloc(10);
  CHECK(packed.free(buffer, 10).ok());
}

TEST_CASE("a copy that fails while memory is zeroed gives the block back") {
  HeapAllocator heap;
  AclCopyFunctions copies = HostCopies();
  copies.copyin = [](void*, absl::Span<const std::byte>) { return absl::DataLossError("link down"); };
  const PackedAllocator packed = *Pack(*FromAclCallbacks(heap.callbacks(), copies));
  CHECK(packed.alloc(10, {.zero = true}).status().code() == absl::StatusCode::kDataLoss);
  CHECK(heap.live.empty());
  copies.copyin = [](void*, absl::Span<const std::byte>) -> absl::Status { throw std::runtime_error("thrown"); };
  const PackedAllocator throwing = *Pack(*FromAclCallbacks(heap.callbacks(), copies));
  CHECK_THROWS_WITH(throwing.alloc(10, {.zero = true}).status().IgnoreError(), "thrown");
  CHECK(heap.live.empty());
}

TEST_CASE("the advised address reaches alloc_advise, and its null the ordinary alloc") {
  HeapAllocator heap;
  std::array<char, 4> hint{};
  AclImportOptions options;
  options.advise = [&hint](std::size_t nbytes, const BufferSpec& spec) {
    return nbytes == 10 && spec.nolru ? static_cast<void*>(hint.data()) : nullptr;
  };
  const PackedAllocator packed = Packed(heap, options);
  const AnyBuf plain = *packed.alloc(10);
  CHECK(heap.advised.empty());
  const AnyBuf advised = *packed.alloc(10, {.nolru = true});
  CHECK(heap.advised == std::vector<void*>{hint.data()});
  CHECK(heap.allocs == 2);
  heap.take_advice = false;
  const AnyBuf other = *packed.alloc(10, {.nolru = true});
  CHECK(heap.advised.size() == 2);
  CHECK(heap.allocs == 3);
  CHECK(packed.free(plain, 10).ok());
  CHECK(packed.free(advised, 10, {.nolru = true}).ok());
  CHECK(packed.free(other, 10, {.nolru = true}).ok());

  AclCallbacks without = heap.callbacks();
  without.alloc_advise = nullptr;
  const auto record = *FromAclCallbacks(without, HostCopies(), options);
  const AclBlock block = *record.alloc(10, {.nolru = true});
  CHECK(heap.advised.size() == 2);
  CHECK(record.free(block, 10, {.nolru = true}).ok());
}

TEST_CASE("freed, foreign and viewed blocks are refused by the raw record too, and the callbacks never see them") {
  HeapAllocator heap;
  const auto record = *FromAclCallbacks(heap.callbacks(), HostCopies());
  const AclBlock block = *record.alloc(100, {});
  const AclBlock view = *record.offset(block, 10, 90);
  CHECK(view == AclBlock{block.block, block.address, 90, 10});
  CHECK(record.addr(view).value == record.addr(block).value + 90);
  std::array<std::byte, 101> bytes{};
  CHECK(record.copyin(block, bytes).code() == absl::StatusCode::kOutOfRange);
  CHECK(record.copyin(view, absl::MakeSpan(bytes).subspan(0, 11)).code() == absl::StatusCode::kOutOfRange);
  CHECK(record.offset(view, 10, 1).status().code() == absl::StatusCode::kOutOfRange);
  CHECK(record.offset(block, 2, SIZE_MAX).status().code() == absl::StatusCode::kOutOfRange);
  CHECK(record.free(view, 10, {}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(record.free(block, 99, {}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(record.free(block, 100, {.external_ptr = 64}).code() == absl::StatusCode::kInvalidArgument);
  CHECK(record.free(block, 100, {}).ok());
  for (const AclBlock& bad : {block, view, AclBlock{&bytes, &bytes, 0, 100}}) {
    CHECK(record.free(bad, bad.nbytes, {}).code() == absl::StatusCode::kInvalidArgument);
    CHECK(record.copyin(bad, absl::MakeSpan(bytes).subspan(0, 10)).code() == absl::StatusCode::kInvalidArgument);
    CHECK(record.copyout(absl::MakeSpan(bytes).subspan(0, 10), bad).code() == absl::StatusCode::kInvalidArgument);
    CHECK(record.transfer(bad, bad, 10).code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(heap.foreign_frees == 0);
  CHECK(heap.live.empty());
}

TEST_CASE("a large alignment is served from inside a larger block, which goes back whole") {
  HeapAllocator heap;
  for (const bool by_allocator : {false, true}) {
    const AclCopies copies = by_allocator ? AclCopies(*Pack(CpuAllocator())) : AclCopies(HostCopies());
    const PackedAllocator packed = *Pack(*FromAclCallbacks(heap.callbacks(), copies));
    for (const std::size_t alignment : {std::size_t{64}, std::size_t{4096}, std::size_t{1} << 16}) {
      const BufferSpec spec{.zero = true, .alignment = alignment};
      const AnyBuf buffer = *packed.alloc(5000, spec);
      CHECK(packed.addr(buffer)->value % alignment == 0);
      std::vector<std::byte> bytes(5000, std::byte{1});
      CHECK(packed.copyout(absl::MakeSpan(bytes), buffer).ok());
      CHECK(bytes == std::vector<std::byte>(5000));
      CHECK(packed.free(buffer, 5000, spec).ok());
    }
  }
  CHECK(heap.live.empty());
  CHECK(heap.foreign_frees == 0);
}

TEST_CASE("what the callbacks cannot be asked for is refused before they are called") {
  HeapAllocator heap;
  const PackedAllocator packed = Packed(heap, {.max_alloc_bytes = 1000});
  for (const BufferSpec& spec :
       {BufferSpec{.uncached = true}, BufferSpec{.cpu_access = true}, BufferSpec{.host = true}}) {
    CHECK(packed.alloc(10, spec).status().code() == absl::StatusCode::kInvalidArgument);
  }
  CHECK(packed.alloc(1001).status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(packed.alloc(SIZE_MAX).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(heap.allocs == 0);
  const PackedAllocator host = *Pack(*FromAclCallbacks(heap.callbacks(), *Pack(CpuAllocator())));
  const AnyBuf buffer = *host.alloc(10, {.host = true});
  CHECK(host.host_ptr(buffer).ok());
  CHECK(host.free(buffer, 10, {.host = true}).ok());
  // A device whose memory the CPU does not see.
  FakeAcl acl;
  const PackedAllocator gpu = *Pack(MockAllocator({.host_accessible = false}));
  const AclRegistration registration = *ExportAclAllocator(gpu, {.stream = acl.stream(), .functions = acl.functions()});
  const PackedAllocator in = *Pack(*FromAclCallbacks(registration.callbacks(), gpu));
  CHECK(in.alloc(10, {.host = true}).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(registration.stats().live_blocks == 0);
}

TEST_CASE("aclrtMemcpy follows the stream's work, and overlapping transfers are a memmove") {
  FakeAcl acl;
  void* memory = nullptr;
  REQUIRE(packalloc_acl_create_allocator(acl.stream(), &memory) == ACL_SUCCESS);
  const auto record = *FromAclCallbacks({memory, &packalloc_acl_alloc, &packalloc_acl_alloc_advise, &packalloc_acl_free,
                                         &packalloc_acl_get_addr_from_block},
                                        acl.functions(), {.stream = acl.stream()});
  constexpr std::size_t kBytes = (std::size_t{3} << 20) + 7;
  const AclBlock block = *record.alloc(kBytes, {});
  std::vector<std::byte> pattern(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) pattern[i] = static_cast<std::byte>(i % 251);
  for (const auto& [to, from] : {std::pair<std::size_t, std::size_t>{1000, 0}, {0, 1000}, {5, 5}}) {
    CHECK(record.copyin(block, pattern).ok());
    const std::size_t nbytes = kBytes - 1000;
    CHECK(record.transfer(*record.offset(block, nbytes, to), *record.offset(block, nbytes, from), nbytes).ok());
    std::vector<std::byte> wanted = pattern;
    std::memmove(wanted.data() + to, wanted.data() + from, nbytes);
    std::vector<std::byte> got(kBytes);
    CHECK(record.copyout(absl::MakeSpan(got), block).ok());
    CHECK((got == wanted));
  }
  acl.TakeLog();
  CHECK(record.copyin(block, absl::MakeSpan(pattern).subspan(0, 8)).ok());
  CHECK(acl.TakeLog() == std::vector<std::string>{"SynchronizeStream", "Memcpy"});
  CHECK(record.synchronize().ok());
  CHECK(acl.TakeLog() == std::vector<std::string>{"SynchronizeStream"});
  acl.faults["Memcpy"] = 507899;
  CHECK(record.copyin(block, absl::MakeSpan(pattern).subspan(0, 8)).code() == absl::StatusCode::kInternal);
  acl.faults = {{"SynchronizeStream", 507899}};
  CHECK(record.copyin(block, absl::MakeSpan(pattern).subspan(0, 8)).code() == absl::StatusCode::kInternal);
  acl.faults.clear();
  CHECK(record.free(block, kBytes, {}).ok());
  CHECK(packalloc_acl_destroy_allocator(memory) == ACL_SUCCESS);
}

TEST_CASE("an error of libpackalloc_acl ends with its reason") {
  FakeAcl acl;
  HeapAllocator heap;
  const auto record = *FromAclCallbacks(heap.callbacks(), *LoadAclFunctions(), {.stream = acl.stream()});
  const AclBlock block = *record.alloc(1000, {});
  const absl::Status status = record.copyin(block, std::vector<std::byte>(1000));
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Says(status, "aclrtMemcpy of 1000 bytes answered 100000: a parameter is invalid: the dst"));
  CHECK(Says(status, "lies in no live block"));
  CHECK(record.free(block, 1000, {}).ok());
}

TEST_CASE("nobody adds to addresses that are handles: the caller says so, or it is known") {
  const auto heap = std::make_shared<HeapAllocator>();
  const auto import = [heap] {
    AclImportOptions options = Bounded();
    options.min_alignment = 16;
    options.address_is_pointer = false;
    return FromAclCallbacks(heap->callbacks(), HostCopies(), options);
  };
  ContractOptions options = Without({"offset", "copy_from_disk", "host_ptr", "memory_info"});
  RunContract([&] { return Pack(*import()); }, options);
  const auto record = *import();
  CHECK_FALSE(record.traits.address_is_pointer);
  CHECK_FALSE(record.supports_offset());
  CHECK(record.alloc(10, {.alignment = 4096}).status().code() == absl::StatusCode::kInvalidArgument);
  const AclBlock zeroed = *record.alloc(3 << 20, {.zero = true});  // in one piece
  CHECK(record.addr(zeroed) == DeviceAddress{reinterpret_cast<std::uintptr_t>(zeroed.address), 0});
  CHECK(record.free(zeroed, 3 << 20, {}).ok());
  CHECK(heap->live.empty());

  FakeAcl acl;
  for (const bool pointers : {true, false}) {
    const PackedAllocator mock = *Pack(MockAllocator({.address_is_pointer = pointers}));
    const AclRegistration registration =
        *ExportAclAllocator(mock, {.stream = acl.stream(), .functions = acl.functions()});
    for (const AclCopies& copies : {AclCopies(HostCopies()), AclCopies(acl.functions())}) {
      CHECK(FromAclCallbacks(registration.callbacks(), copies)->supports_offset() == pointers);
    }
  }
  // Of libpackalloc_acl, through callbacks that it does not know: what the stream says.
  const AclFunctions real = *LoadAclFunctions();
  CHECK(FromAclCallbacks(heap->callbacks(), real, {.stream = acl.stream()})->supports_offset());
  CHECK_FALSE(FromAclCallbacks(heap->callbacks(), real)->supports_offset());
}

TEST_CASE("handles that lie close together are no overlap") {
  FakeAcl acl;
  AclFunctions functions = acl.functions();
  functions.aclrtMemcpy = [](void*, std::size_t, const void*, std::size_t, int kind) { return kind == 3 ? 0 : 100000; };
  HeapAllocator heap;
  const auto record = *FromAclCallbacks(heap.callbacks(), functions, {.address_is_pointer = false});
  constexpr std::size_t kMoreThanApart = std::size_t{1} << 20;
  const AclBlock one = *record.alloc(kMoreThanApart, {});
  AclBlock next = *record.alloc(kMoreThanApart, {});
  void* const real = std::exchange(next.address, static_cast<std::byte*>(one.address) + 8);
  CHECK(record.transfer(next, one, kMoreThanApart).ok());
  next.address = real;
  CHECK(record.free(one, kMoreThanApart, {}).ok());
  CHECK(record.free(next, kMoreThanApart, {}).ok());
}

TEST_CASE("what is missing is named") {
  HeapAllocator heap;
  const AclCallbacks good = heap.callbacks();
  for (const char* missing : {"alloc", "free", "get_addr_from_block"}) {
    AclCallbacks bad = good;
    if (missing[0] == 'a') bad.alloc = nullptr;
    if (missing[0] == 'f') bad.free = nullptr;
    if (missing[0] == 'g') bad.get_addr_from_block = nullptr;
    const absl::Status status = FromAclCallbacks(bad, HostCopies()).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(Says(status, missing));
  }
  AclCopyFunctions copies = HostCopies();
  copies.copyout = nullptr;
  CHECK(Says(FromAclCallbacks(good, copies).status(), "copyout"));
  CHECK(Says(FromAclCallbacks(good, AclCopyFunctions()).status(), "copyin"));
  CHECK(FromAclCallbacks(good, PackedAllocator()).status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(FromAclCallbacks(good, HostCopies(), {.min_alignment = 3}).status().code() ==
        absl::StatusCode::kInvalidArgument);
  const absl::Status given = FromAclCallbacks(good, AclFunctions()).status();
  CHECK(given.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Says(given, "aclrtMemcpy"));
  const absl::Status loaded = FromAclCallbacks(good, *LoadAclFunctions(PACKALLOC_ACL_INCOMPLETE)).status();
  CHECK(loaded.code() == absl::StatusCode::kUnavailable);
  CHECK(Says(loaded, "aclrtMemcpy"));
}

TEST_CASE("optional members are there where the copies have them") {
  HeapAllocator heap;
  const auto plain = *FromAclCallbacks(heap.callbacks(), HostCopies(false));
  CHECK(plain.supports_offset());
  CHECK_FALSE(plain.supports_transfer());
  CHECK_FALSE(plain.supports_copy_from_disk());
  CHECK_FALSE(static_cast<bool>(plain.host_ptr));
  CHECK_FALSE(static_cast<bool>(plain.synchronize));
  const PackedAllocator no_views = *Pack(MockAllocator({.absent = {Member::kOffset, Member::kTransfer}}));
  FakeAcl acl;
  const AclRegistration registration =
      *ExportAclAllocator(no_views, {.stream = acl.stream(), .functions = acl.functions()});
  const auto record = *FromAclCallbacks(registration.callbacks(), no_views, {.min_alignment = 64});
  CHECK_FALSE(record.supports_offset());
  CHECK_FALSE(record.supports_transfer());
  const AclBlock zeroed = *record.alloc(3 << 20, {.zero = true});  // in one piece
  std::vector<std::byte> bytes(3 << 20, std::byte{1});
  CHECK(record.copyout(absl::MakeSpan(bytes), zeroed).ok());
  CHECK((bytes == std::vector<std::byte>(3 << 20)));
  CHECK(record.alloc(10, {.alignment = 4096}).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("a handle that nobody knows is refused, and the block goes back") {
  HeapAllocator heap;
  const PackedAllocator handles = *Pack(MockAllocator({.address_is_pointer = false}));
  const auto record = *FromAclCallbacks(heap.callbacks(), handles);
  const absl::Status status = record.alloc(10, {}).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Says(status, "handle"));
  CHECK(heap.live.empty());
}

TEST_CASE("what was imported can be exported again") {
  FakeAcl acl;
  HeapAllocator heap;
  {
    const PackedAllocator packed = Packed(heap);
    AclRegistration registration = *ExportAclAllocator(packed, {.stream = acl.stream(), .functions = acl.functions()});
    const AclCallbacks c = RegisteredWith(acl.stream());
    void* block = c.alloc(c.object, 100);
    REQUIRE(block != nullptr);
    CHECK(c.get_addr_from_block(block) == (*heap.live.begin())->memory);
    c.free(c.object, block);
  }
  CHECK(heap.live.empty());
}

}  // namespace
}  // namespace packalloc::testing
