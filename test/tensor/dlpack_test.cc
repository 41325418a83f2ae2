#include "packalloc/tensor/dlpack.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "lib/tensor/dlpack_abi.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/buffer.h"
#include "packalloc/copy.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/tensor_pool.h"
#include "test/fake_record.h"

namespace packalloc {
namespace {

using dlpack_abi::From;
using dlpack_abi::ToPublic;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kState = absl::StatusCode::kFailedPrecondition;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
constexpr DlDevice kCpuDevice{DlDevice::kCpu};

// A tensor of another library, on the stack: its deleter counts.
template <typename Struct>
struct Foreign {
  explicit Foreign(std::vector<std::int64_t> its_shape, DataType dtype = kFloat32,
                   std::optional<std::vector<std::int64_t>> its_strides = {}, void* data = nullptr)
      : shape(std::move(its_shape)), strides(its_strides.value_or(std::vector<std::int64_t>{})) {
    for (std::size_t i = 0; i < sizeof memory; ++i) memory[i] = static_cast<std::byte>(i);
    managed.dl_tensor = {.data = data != nullptr ? data : memory,
                         .device = kCpuDevice,
                         .ndim = static_cast<std::int32_t>(shape.size()),
                         .dtype = dtype,
                         .shape = shape.data(),
                         .strides = its_strides ? strides.data() : nullptr,
                         .byte_offset = 0};
    managed.manager_ctx = this;
    managed.deleter = [](typename Struct::Public* self) { ++static_cast<Foreign*>(From(self)->manager_ctx)->deleted; };
    if constexpr (requires { managed.version; }) managed.version = {1, 0};
  }
  typename Struct::Public* get() { return ToPublic(&managed); }

  alignas(64) std::byte memory[256];
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  Struct managed{};
  std::atomic<int> deleted{0};
};
using ForeignVersioned = Foreign<dlpack_abi::ManagedVersioned>;
using ForeignLegacy = Foreign<dlpack_abi::Managed>;

std::vector<std::byte> Read(const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.nbytes());
  CHECK(tensor.CopyOut(absl::MakeSpan(bytes)).ok());
  return bytes;
}

TensorPool CpuPool() { return *TensorPool::Make(*Pack(CpuAllocator())); }

TEST_CASE_TEMPLATE("import: strides that are NULL, of size-1 and empty dimensions, and of none", Struct,
                   dlpack_abi::Managed, dlpack_abi::ManagedVersioned) {
  {
    Foreign<Struct> f({2, 3});
    const Tensor t = *FromDlpack(f.get());
    CHECK(t.nbytes() == 24);
    CHECK(Read(t) == std::vector<std::byte>(f.memory, f.memory + 24));
    CHECK(t.data().value == reinterpret_cast<std::uintptr_t>(f.memory));
  }
  {
    Foreign<Struct> f({1, 5}, kFloat32, {{77, 1}});
    CHECK(FromDlpack(f.get())->nbytes() == 20);
    CHECK(f.strides == std::vector<std::int64_t>{77, 1});
    CHECK(f.shape == std::vector<std::int64_t>{1, 5});
  }
  {
    Foreign<Struct> f({0, 3}, kFloat32, {{0, 0}});
    f.managed.dl_tensor.data = nullptr;
    const absl::StatusOr<Tensor> t = FromDlpack(f.get());
    REQUIRE(t.ok());
    CHECK(t->nbytes() == 0);
    CHECK(t->data() == DeviceAddress{});
    CHECK(f.deleted == 0);
    const DlpackVersionedPtr out = *ToDlpackVersioned(*t);
    CHECK(From(out.get())->dl_tensor.data == nullptr);
    CHECK(From(out.get())->dl_tensor.shape[1] == 3);
  }
  {
    Foreign<Struct> f({});
    f.managed.dl_tensor.shape = nullptr;
    CHECK(FromDlpack(f.get())->nbytes() == 4);
    CHECK(f.deleted == 1);
  }
  for (const auto& strides : {std::vector<std::int64_t>{1, 2}, {3, 2}, {4, 1}, {-3, 1}, {0, 0}, {3, 0}}) {
    Foreign<Struct> f({2, 3}, kFloat32, strides);
    const absl::Status refused = FromDlpack(f.get()).status();
    CHECK(refused.code() == kInvalid);
    CHECK(f.deleted == 0);
    CHECK(f.strides == strides);
  }
  {
    Foreign<Struct> f({2, 3});
    f.managed.dl_tensor.ndim = -1;
    CHECK(FromDlpack(f.get()).status().code() == kInvalid);
    f.managed.dl_tensor.ndim = 2;
    f.managed.dl_tensor.shape = nullptr;
    CHECK(FromDlpack(f.get()).status().code() == kInvalid);
    f.managed.dl_tensor.shape = f.shape.data();
    f.shape[0] = -1;
    CHECK(FromDlpack(f.get()).status().code() == kInvalid);
    f.shape[0] = std::int64_t{1} << 62;
    CHECK(FromDlpack(f.get()).status().code() == kInvalid);
    f.shape[0] = 2;
    f.managed.dl_tensor.data = nullptr;
    CHECK(FromDlpack(f.get()).status().code() == kInvalid);
    f.managed.dl_tensor.data = f.memory;
    f.managed.dl_tensor.byte_offset = UINT64_MAX - 8;
    CHECK(FromDlpack(f.get()).status().code() == kInvalid);
    f.managed.dl_tensor.byte_offset = 0;
    CHECK(f.deleted == 0);
    CHECK(FromDlpack(f.get()).ok());
    CHECK(f.deleted == 1);
    typename Struct::Public* null = nullptr;
    CHECK(FromDlpack(null).status().code() == kInvalid);
  }
}

TEST_CASE_TEMPLATE("the deleter is called once, by whoever has it", Struct, dlpack_abi::Managed,
                   dlpack_abi::ManagedVersioned) {
  Foreign<Struct> dropped({4});
  CHECK(FromDlpack(dropped.get()).ok());
  CHECK(dropped.deleted == 1);

  Foreign<Struct> shared({4});
  {
    Tensor tensor = *FromDlpack(shared.get());
    Tensor view = *tensor.View({1}, kFloat32, 12);
    const DlpackVersionedPtr out = *ToDlpackVersioned(view);
    tensor = view = Tensor();
    CHECK(shared.deleted == 0);
    CHECK(*static_cast<std::byte*>(From(out.get())->dl_tensor.data) == std::byte{12});
  }
  CHECK(shared.deleted == 1);

  Foreign<Struct> failed({4}, {99, 8});
  CHECK(FromDlpack(failed.get()).status().code() == kInvalid);
  CHECK(failed.deleted == 0);
  // Late failures too: the allocator refuses to wrap, or throws.
  const auto fake = std::make_shared<Fake>();
  const PackedAllocator refusing = *Pack(FakeRecord(fake));
  Foreign<Struct> late({4});
  fake->on_alloc = [] { return absl::InternalError("no"); };
  CHECK(FromDlpack(late.get(), {.allocator = refusing}).status().code() == absl::StatusCode::kInternal);
  fake->on_alloc = []() -> absl::Status { throw 42; };
  CHECK_THROWS_AS(FromDlpack(late.get(), {.allocator = refusing}).IgnoreError(), int);
  CHECK(late.deleted == 0);
  fake->on_alloc = [] { return absl::OkStatus(); };
  CHECK(FromDlpack(late.get(), {.allocator = refusing}).ok());
  CHECK(late.deleted == 1);
  CHECK(fake->live.empty());

  Foreign<Struct> without({4});
  without.managed.deleter = nullptr;
  CHECK(FromDlpack(without.get()).ok());
  DlpackDeleter()(without.get());

  Foreign<Struct> elsewhere({4});
  std::thread([t = *FromDlpack(elsewhere.get())]() mutable { t = Tensor(); }).join();
  CHECK(elsewhere.deleted == 1);

  Foreign<Struct> buffer({4});
  {
    const Buffer bytes = *BufferFromDlpack(buffer.get());
    CHECK(bytes.nbytes() == 16);
    CHECK(*bytes.host_ptr() == buffer.memory);
  }
  CHECK(buffer.deleted == 1);
}

TEST_CASE("versions: any minor one, no other major one, of which only the version is read") {
  for (const dlpack_abi::Version version : {dlpack_abi::Version{1, 0}, {1, 99}}) {
    ForeignVersioned f({4});
    f.managed.version = version;
    CHECK(FromDlpack(f.get()).ok());
  }
  for (const std::uint32_t major : {0U, 2U, 77U}) {
    // Everything behind the deleter lies on a page that cannot be read.
    const std::size_t page = 4096;
    auto* pages =
        static_cast<std::byte*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(pages != MAP_FAILED);
    auto* managed =
        reinterpret_cast<dlpack_abi::ManagedVersioned*>(pages + page - offsetof(dlpack_abi::ManagedVersioned, flags));
    managed->version = {major, 0};
    managed->deleter = [](DLManagedTensorVersioned*) { FAIL("called by us"); };
    REQUIRE(mprotect(pages + page, page, PROT_NONE) == 0);
    CHECK(FromDlpack(ToPublic(managed)).status().code() == kUnimplemented);
    CHECK(BufferFromDlpack(ToPublic(managed)).status().code() == kUnimplemented);
    munmap(pages, 2 * page);
  }
}

TEST_CASE("read-only memory cannot be written, and stays so") {
  void* page = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(page != MAP_FAILED);
  const PackedAllocator cpu = *Pack(CpuAllocator());
  for (const bool with_allocator : {false, true}) {
    ForeignVersioned f({1024}, kFloat32, {}, page);
    f.managed.flags = dlpack_abi::kReadOnly | dlpack_abi::kIsCopied | (std::uint64_t{1} << 60);
    FromDlpackOptions options;
    if (with_allocator) options.allocator = cpu;
    const Tensor tensor = *FromDlpack(f.get(), options);
    CHECK(tensor.read_only());
    const std::vector<std::byte> bytes(16);
    CHECK(tensor.CopyIn(bytes).code() == kState);
    CHECK(tensor.View({4}, kFloat32, 64)->CopyIn(bytes).code() == kState);
    CHECK(tensor.host_ptr().status().code() == kState);
    CHECK(Read(tensor) == std::vector<std::byte>(4096));
    // By Copy: out of it, not into it.
    const Buffer writable(cpu, 4096);
    CHECK(Copy(*writable.ref(), *tensor.ref()).ok());
    CHECK(!Copy(*tensor.ref(), *writable.ref()).ok());
    // Exports.
    CHECK(From(ToDlpackVersioned(tensor)->get())->flags == dlpack_abi::kReadOnly);
    CHECK(From(ToDlpackVersioned(tensor, {.is_copied = true})->get())->flags == 3);
    CHECK(ToDlpack(tensor).status().code() == kState);
    CHECK(ToDlpack(*tensor.View({1}, kInt8)).status().code() == kState);
  }
  {
    ForeignVersioned f({1024}, kFloat32, {}, page);
    f.managed.flags = dlpack_abi::kReadOnly;
    const Buffer buffer = *BufferFromDlpack(f.get());
    CHECK(buffer.CopyIn(std::vector<std::byte>(1)).code() == kState);
    CHECK(!buffer.CopyFrom(Buffer(cpu, 4096)).ok());
    CHECK(Tensor::Over(buffer, {4096}, kUInt8)->read_only());
  }
  {
    // A mapping of the user's own.
    const Buffer mapping = Buffer::Wrap(cpu, page, 4096);
    const Tensor tensor = *Tensor::Over(mapping, {1024}, kFloat32, {.read_only = true});
    CHECK(From(ToDlpackVersioned(tensor)->get())->flags == dlpack_abi::kReadOnly);
    CHECK(ToDlpack(tensor).status().code() == kState);
  }
  munmap(page, 4096);
}

TEST_CASE("data types go in and out as they are") {
  struct Case {
    DataType dtype;
    std::int64_t elements;
    std::size_t nbytes;  // 0: refused
  };
  for (const Case& c : std::initializer_list<Case>{{{6, 8}, 1, 1},
                                                   {{4, 16}, 1, 2},
                                                   {{2, 16}, 1, 2},
                                                   {{5, 64}, 1, 8},
                                                   {{2, 32, 4}, 3, 48},
                                                   {{1, 4}, 3, 2},
                                                   {{10, 8}, 5, 5},
                                                   {{17, 4, 2}, 3, 3},
                                                   {{4, 8}, 1, 0},
                                                   {{99, 8}, 1, 0},
                                                   {{2, 32, 0}, 1, 0}}) {
    ForeignVersioned f({c.elements}, c.dtype);
    const absl::StatusOr<Tensor> tensor = FromDlpack(f.get());
    CHECK(tensor.ok() == (c.nbytes != 0));
    if (!tensor.ok()) continue;
    CHECK(tensor->nbytes() == c.nbytes);
    CHECK(From(ToDlpackVersioned(*tensor)->get())->dl_tensor.dtype == c.dtype);
    CHECK(From(ToDlpack(*tensor)->get())->dl_tensor.dtype == c.dtype);
    CHECK(CpuPool().Empty({c.elements}, c.dtype)->nbytes() == c.nbytes);
  }
}

TEST_CASE("sub-byte elements that are padded stay padded, and the legacy struct cannot say so") {
  ForeignVersioned f({3}, {DataType::kUInt, 4});
  f.managed.flags = dlpack_abi::kSubByteTypePadded;
  const Tensor tensor = *FromDlpack(f.get());
  CHECK(tensor.nbytes() == 3);
  CHECK(From(ToDlpackVersioned(tensor)->get())->flags == dlpack_abi::kSubByteTypePadded);
  CHECK(ToDlpack(tensor).status().code() == kState);
}

TEST_CASE("an export has filled strides, a folded offset, and its own copy of the shape") {
  const TensorPool pool = CpuPool();
  const Tensor base = *pool.Empty({4, 3, 2}, kFloat32);
  CHECK(base.data().value % 256 == 0);
  const Tensor view = *pool.CreateView(base, {2, 1, 2, 1, 2, 1}, kInt16, 24);
  for (int round = 0; round < 2; ++round) {
    const DlpackVersionedPtr versioned = *ToDlpackVersioned(view);
    const DlpackPtr legacy = *ToDlpack(view);
    CHECK(From(versioned.get())->version.major == 1);
    const dlpack_abi::Tensor& dl = round == 0 ? From(versioned.get())->dl_tensor : From(legacy.get())->dl_tensor;
    CHECK(dl.data == reinterpret_cast<void*>(base.data().value + 24));
    CHECK(dl.byte_offset == 0);
    CHECK(dl.device == kCpuDevice);
    CHECK(dl.dtype == kInt16);
    REQUIRE(dl.ndim == 6);
    CHECK(std::vector<std::int64_t>(dl.shape, dl.shape + 6) == std::vector<std::int64_t>{2, 1, 2, 1, 2, 1});
    CHECK(std::vector<std::int64_t>(dl.strides, dl.strides + 6) == std::vector<std::int64_t>{4, 4, 2, 2, 1, 1});
  }
  CHECK(ToDlpackVersioned(Tensor()).status().code() == kState);
  CHECK(ToDlpack(Tensor()).status().code() == kState);
  // Strides that would overflow where there is no element.
  constexpr std::int64_t k2e62 = std::int64_t{1} << 62;
  CHECK(ToDlpackVersioned(*pool.Empty({0, k2e62, k2e62}, kFloat32)).ok());
}

TEST_CASE("opaque handles go out and come in with their byte_offset") {
  const PackedAllocator device = *Pack(MockAllocator({.address_is_pointer = false}));
  const TensorPool pool = *TensorPool::Make({{DlDevice{DlDevice::kOpenCl, 1}, device}});
  const Tensor base = *pool.Empty({1024}, kUInt8);
  DlpackVersionedPtr out = *ToDlpackVersioned(*base.View({16}, kUInt8, 100));
  CHECK(From(out.get())->dl_tensor.data == reinterpret_cast<void*>(base.data().value));
  CHECK(From(out.get())->dl_tensor.byte_offset == 100);

  CHECK(FromDlpack(out.get(), {.allocator = device}).status().code() == kUnimplemented);
  const Tensor in = *FromDlpack(out.get());
  DLManagedTensorVersioned* const handed_over = out.release();
  CHECK(in.data() == DeviceAddress{base.data().value, 100});
  CHECK(!in.data_is_pointer());
  CHECK(in.View({4}, kUInt8, 8)->data().byte_offset == 108);
  CHECK(From(ToDlpackVersioned(*in.View({4}, kUInt8, 8))->get())->dl_tensor.byte_offset == 108);
  CHECK(in.CopyIn(std::vector<std::byte>(1)).code() == kUnimplemented);
  const Buffer bytes = *BufferFromDlpack(ToDlpackVersioned(in)->release());
  CHECK(*bytes.addr() == DeviceAddress{base.data().value, 100});
  CHECK(bytes.nbytes() == 16);
  static_cast<void>(handed_over);
}

TEST_CASE("device memory without an allocator has an address only; with one it can be copied") {
  ForeignVersioned f({4});
  f.managed.dl_tensor.device = {DlDevice::kCuda, 1};
  f.managed.dl_tensor.data = reinterpret_cast<void*>(0x7000000000);  // nothing the CPU may touch
  f.managed.dl_tensor.byte_offset = 64;
  {
    const Tensor tensor = *FromDlpack(f.get());
    CHECK(tensor.data() == DeviceAddress{0x7000000040, 0});
    CHECK(tensor.CopyOut(absl::MakeSpan(f.memory, 4)).code() == kUnimplemented);
    CHECK(!tensor.host_ptr().ok());
  }
  const auto named = [](const char* name) { return *Pack(MockAllocator({.name = name})); };
  CHECK(FromDlpack(f.get(), {.allocator = named("CUDA:0")}).status().code() == kInvalid);
  CHECK(FromDlpack(f.get(), {.allocator = named("CPU")}).status().code() == kInvalid);
  CHECK(f.deleted == 1);
  CHECK(FromDlpack(f.get(), {.allocator = named("CUDA:1")}).ok());
  CHECK(f.deleted == 2);
  // Pinned memory of CUDA is host memory, and its own device's too.
  f.managed.dl_tensor.device = {DlDevice::kCudaHost, 0};
  f.managed.dl_tensor.data = f.memory;
  f.managed.dl_tensor.byte_offset = 4;
  CHECK(Read(*FromDlpack(f.get()))[0] == std::byte{4});
  CHECK(FromDlpack(f.get(), {.allocator = named("CUDA:1")}).ok());
}

TEST_CASE("an export outlives its pool, and its memory goes back once") {
  for (const bool consumed : {false, true}) {
    Allocator<MockBuf> record = MockAllocator();
    const std::shared_ptr<MockControl> mock = Find<MockControl>(record);
    std::optional<TensorPool> pool = *TensorPool::Make({{DlDevice{DlDevice::kExtDev}, *Pack(std::move(record))}});
    DlpackVersionedPtr out = *ToDlpackVersioned(*pool->Empty({16}, kFloat32));
    CHECK(pool->cache()->stats().in_use_buffers == 1);
    if (!consumed) {
      out.reset();  // never consumed: back to the pool
      CHECK(pool->cache()->stats().cached_buffers == 1);
      pool.reset();
    } else {
      pool.reset();
      CHECK(mock->live_blocks() == 1);
      std::thread([&] { out.reset(); }).join();
    }
    CHECK(mock->live_blocks() == 0);
    CHECK(mock->log().Count(Member::kFree) == 1);
  }
}

TEST_CASE("a deleter outlives the library that exported it being closed") {
  void* library = dlopen(PACKALLOC_DLPACK_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library != nullptr, dlerror());
  auto* make = reinterpret_cast<DLManagedTensor* (*)()>(dlsym(library, "packalloc_test_export"));
  REQUIRE((make != nullptr));
  DlpackPtr exported(make());
  CHECK(dlclose(library) == 0);
  CHECK(*static_cast<std::byte*>(From(exported.get())->dl_tensor.data) == std::byte{7});
}

TEST_CASE("buffers, views and exports in any order, the allocator gone first") {
  for (int order = 0; order < 6; ++order) {
    const auto fake = std::make_shared<Fake>();
    std::optional<Buffer> buffer(std::in_place, *Pack(FakeRecord(fake)), 4096);
    std::optional<Buffer> view = *buffer->View(16, 8);
    REQUIRE(view->Allocate().ok());
    DlpackPtr out = *ToDlpack(*Tensor::Over(*view, {16}, kUInt8, {.device = kCpuDevice}));
    CHECK(buffer->Deallocate().code() == kState);
    const auto drop = [&](int what) {
      if (what == 0) buffer.reset();
      if (what == 1) view.reset();
      if (what == 2) out.reset();
    };
    constexpr int kOrders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < 3; ++i) {
      CHECK(fake->frees == 0);
      drop(kOrders[order][i]);
    }
    CHECK(fake->frees == 1);
    CHECK(fake->live.empty());
  }
}

}  // namespace
}  // namespace packalloc
