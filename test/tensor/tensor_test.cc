// Data types, sizes of shapes, devices, and tensors over buffers.
#include "packalloc/tensor/tensor.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/mock.h"
#include "packalloc/buffer.h"
#include "packalloc/copy.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/data_type.h"
#include "packalloc/tensor/device.h"
#include "test/fake_record.h"

namespace packalloc {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kRange = absl::StatusCode::kOutOfRange;
constexpr auto kState = absl::StatusCode::kFailedPrecondition;

std::vector<std::byte> Numbered(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(i % 251);
  return bytes;
}

TEST_CASE("every data type has its size, and the wrong ones are refused") {
  struct Case {
    DataType dtype;
    std::int64_t elements;
    std::int64_t nbytes;  // -1: an error
    const char* name;
  };
  for (const Case& c : std::initializer_list<Case>{
           {{6, 8}, 1, 1, "bool"},
           {{4, 16}, 1, 2, "bfloat16"},
           {{2, 16}, 1, 2, "float16"},
           {{5, 64}, 1, 8, "complex64"},
           {{5, 128}, 2, 32, "complex128"},
           {{2, 32, 4}, 3, 48, "float32x4"},
           {{1, 4}, 3, 2, "uint4"},
           {{0, 1}, 9, 2, "int1"},
           {{0, 4, 3}, 3, 5, "int4x3"},
           {{0, 2, 4}, 3, 3, "int2x4"},
           {{2, 128}, 2, 32, "float128"},
           {{2, 80}, 2, 20, "float80"},
           {{3, 64}, 2, 16, "handle64"},
           {{7, 8}, 3, 3, "float8_e3m4"},
           {{8, 8}, 3, 3, "float8_e4m3"},
           {{9, 8}, 3, 3, "float8_e4m3b11fnuz"},
           {{10, 8}, 3, 3, "float8_e4m3fn"},
           {{11, 8}, 3, 3, "float8_e4m3fnuz"},
           {{12, 8}, 3, 3, "float8_e5m2"},
           {{13, 8}, 3, 3, "float8_e5m2fnuz"},
           {{14, 8}, 3, 3, "float8_e8m0fnu"},
           {{15, 6}, 3, 3, "float6_e2m3fn"},
           {{16, 6}, 4, 3, "float6_e3m2fn"},
           {{17, 4}, 3, 2, "float4_e2m1fn"},
           {{4, 8}, 1, -1, "bfloat8"},
           {{99, 8}, 1, -1, "code99_8"},
           {{2, 32, 0}, 1, -1, "float32x0"},
           {{2, 0}, 1, -1, "float0"},
           {{2, 8}, 1, -1, "float8"},
           {{0, 3}, 1, -1, "int3"},
           {{6, 1}, 1, -1, "bool"},
           {{18, 8}, 1, -1, "code18_8"},
           {{17, 8}, 1, -1, "float4_e2m1fn"},
       }) {
    CAPTURE(c.name);
    CHECK(ToString(c.dtype) == c.name);
    const absl::StatusOr<std::size_t> nbytes = TensorBytes({c.elements}, c.dtype);
    if (c.nbytes < 0) {
      CHECK(nbytes.status().code() == kInvalid);
      CHECK(ValidateDataType(c.dtype).code() == kInvalid);
    } else {
      REQUIRE(nbytes.ok());
      CHECK(*nbytes == static_cast<std::size_t>(c.nbytes));
      CHECK(ValidateDataType(c.dtype).ok());
    }
  }
  CHECK(*TensorBytes({3}, {DataType::kUInt, 4}, SubByte::kPadded) == 3);
  CHECK(*TensorBytes({3}, {DataType::kUInt, 4, 2}, SubByte::kPadded) == 6);
  CHECK(*TensorBytes({3}, kFloat32, SubByte::kPadded) == 12);
}

TEST_CASE("products of shapes do not wrap") {
  constexpr std::int64_t k2e62 = std::int64_t{1} << 62;
  constexpr std::int64_t k2e32 = std::int64_t{1} << 32;
  CHECK(*NumElements({}) == 1);
  CHECK(*NumElements({0, k2e62}) == 0);
  CHECK(*NumElements({k2e62, k2e62, 0}) == 0);
  CHECK(*NumElements({k2e62, 1}) == k2e62);
  CHECK(NumElements({-1, 4}).status().code() == kInvalid);
  CHECK(NumElements({0, -1}).status().code() == kInvalid);
  CHECK(NumElements({k2e32, k2e32}).status().code() == kInvalid);
  CHECK(NumElements({k2e62, 2}).status().code() == kInvalid);
  CHECK(*TensorBytes({0, k2e62}, kFloat32) == 0);
  CHECK(TensorBytes({k2e62 + 1}, kFloat32).status().code() == kInvalid);
  CHECK(TensorBytes({k2e32, k2e32}, kUInt8).status().code() == kInvalid);
  CHECK(TensorBytes({k2e32, k2e32 / 2}, kUInt8).status().code() == kInvalid);
  CHECK(TensorBytes({k2e62, 2}, {DataType::kUInt, 4}).status().code() == kInvalid);
  CHECK(*TensorBytes({k2e62}, {DataType::kUInt, 1}) == std::size_t{1} << 59);
  CHECK(TensorBytes({INT64_MAX}, {DataType::kComplex, 128, 65535}).status().code() == kInvalid);
  CHECK(TensorBytes({k2e62 + 1}, kFloat32).status().message().find("4611686018427387905") != std::string::npos);
}

TEST_CASE("devices by an allocator's name") {
  const auto named = [](const std::string& name) { return *Pack(MockAllocator({.name = name})); };
  CHECK(*DlDeviceOf(named("CPU")) == DlDevice{DlDevice::kCpu, 0});
  CHECK(*DlDeviceOf(named("CUDA")) == DlDevice{DlDevice::kCuda, 0});
  CHECK(*DlDeviceOf(named("CUDA:3")) == DlDevice{DlDevice::kCuda, 3});
  CHECK(*DlDeviceOf(named("CUDA:3+lru:max_bytes=1MiB")) == DlDevice{DlDevice::kCuda, 3});
  CHECK(*DlDeviceOf(named("CUDA:3"), {.host = true}) == DlDevice{DlDevice::kCudaHost, 0});
  CHECK(*DlDeviceOf(named("CL:1")) == DlDevice{DlDevice::kOpenCl, 1});
  for (const char* none : {"MOCK", "CUDA:x", "CUDA:-1", "CUDA:", "DISK:/a", "CUDAX"}) {
    CHECK(DlDeviceOf(named(none)).status().code() == kInvalid);
  }
  CHECK(DlDeviceOf(PackedAllocator()).status().code() == kInvalid);
  CHECK(ToString(DlDevice{DlDevice::kCuda, 1}) == "CUDA:1");
  CHECK(ToString(DlDevice{40, 2}) == "device type 40:2");
}

TEST_CASE("a tensor over a buffer reads and writes it, and keeps it") {
  const PackedAllocator cpu = *Pack(CpuAllocator());
  Buffer buffer(cpu, 4096);
  const absl::StatusOr<Tensor> tensor = Tensor::Over(buffer, {4, 8}, kFloat32, {.byte_offset = 100});
  REQUIRE(tensor.ok());
  CHECK(tensor->nbytes() == 128);
  CHECK(tensor->capacity() == 3996);
  CHECK(tensor->device() == DlDevice{DlDevice::kCpu, 0});
  CHECK(tensor->data().value == buffer.addr()->value + 100);
  CHECK(buffer.Deallocate().code() == kState);  // while a tensor has it

  const std::vector<std::byte> bytes = Numbered(128);
  CHECK(tensor->CopyIn(bytes).ok());
  std::vector<std::byte> all(4096);
  CHECK(buffer.CopyOut(absl::MakeSpan(all)).ok());
  CHECK(std::memcmp(all.data() + 100, bytes.data(), 128) == 0);
  CHECK(*tensor->host_ptr() == *buffer.host_ptr() + 100);

  std::vector<std::byte> more(129);
  CHECK(tensor->CopyIn(more).code() == kRange);
  CHECK(tensor->CopyOut(absl::MakeSpan(more)).code() == kRange);
  CHECK(Tensor::Over(buffer, {1024}, kFloat32, {.byte_offset = 1}).status().code() == kRange);
  CHECK(Tensor::Over(buffer, {1}, kUInt8, {.byte_offset = SIZE_MAX}).status().code() == kRange);
  CHECK(Tensor::Over(Buffer(), {1}, kUInt8).status().code() == kInvalid);
  CHECK(Tensor::Over(Buffer(*Pack(MockAllocator()), 8), {1}, kUInt8).status().code() == kInvalid);
  CHECK(Tensor::Over(Buffer(*Pack(MockAllocator()), 8), {1}, kUInt8, {.device = DlDevice{DlDevice::kExtDev}}).ok());
}

TEST_CASE("views are relative to what they are made from, and bounded by it") {
  const Buffer buffer(*Pack(CpuAllocator()), 4096);
  const Tensor tensor = *Tensor::Over(buffer, {4096}, kUInt8);
  REQUIRE(tensor.CopyIn(Numbered(4096)).ok());
  const Tensor v = *tensor.View({1024}, kUInt8, 256);
  const Tensor w = *v.View({64}, kUInt8, 128);
  std::vector<std::byte> read(64);
  CHECK(w.CopyOut(absl::MakeSpan(read)).ok());
  CHECK(std::memcmp(read.data(), Numbered(4096).data() + 384, 64) == 0);
  CHECK(w.data().value == tensor.data().value + 384);
  CHECK(v.View({64}, kUInt8, 1016).status().code() == kRange);  // inside the buffer, not inside v
  CHECK(v.View({1}, kUInt8, SIZE_MAX).status().code() == kRange);
  CHECK(v.View({0}, kUInt8, 1024).ok());
  CHECK(v.View({0}, kUInt8, 1025).status().code() == kRange);
  CHECK(v.View({256}, kFloat32)->nbytes() == 1024);
  CHECK(v.View({257}, kFloat32).status().code() == kRange);

  // The reference of a view is of its bytes.
  const BufferRef ref = *w.ref();
  CHECK(ref.buffer.nbytes() == 64);
  CHECK(ref.allocator.addr(ref.buffer)->value == w.data().value);
  CHECK(tensor.View({16}, kUInt8)->ref()->buffer.nbytes() == 16);
}

TEST_CASE("opaque handles keep the offset apart") {
  const Buffer buffer(*Pack(MockAllocator({.address_is_pointer = false})), 4096);
  const Tensor tensor = *Tensor::Over(buffer, {4096}, kUInt8, {.device = DlDevice{DlDevice::kOpenCl}});
  const Tensor view = *tensor.View({64}, kUInt8, 256)->View({32}, kUInt8, 8);
  CHECK(!view.data_is_pointer());
  CHECK(view.data() == DeviceAddress{buffer.addr()->value, 264});
  CHECK(view.CopyIn(Numbered(32)).ok());
  std::vector<std::byte> read(32);
  CHECK(tensor.View({32}, kUInt8, 264)->CopyOut(absl::MakeSpan(read)).ok());
  CHECK(read == Numbered(32));
}

TEST_CASE("read-only tensors refuse every way to write") {
  const PackedAllocator cpu = *Pack(CpuAllocator());
  const Buffer buffer(cpu, 64);
  REQUIRE(buffer.CopyIn(Numbered(64)).ok());
  const Tensor tensor = *Tensor::Over(buffer, {64}, kUInt8, {.read_only = true});
  CHECK(tensor.CopyIn(Numbered(1)).code() == kState);
  CHECK(tensor.View({8}, kUInt8)->CopyIn(Numbered(1)).code() == kState);
  CHECK(tensor.ref().status().code() == kState);
  CHECK(tensor.host_ptr().status().code() == kState);
  std::vector<std::byte> read(64);
  CHECK(tensor.CopyOut(absl::MakeSpan(read)).ok());
  CHECK(read == Numbered(64));
}

TEST_CASE("empty and moved-from tensors answer with errors") {
  Tensor tensor = *Tensor::Over(Buffer(*Pack(CpuAllocator()), 64), {2, 2, 2, 2, 2}, kInt16);
  Tensor moved = std::move(tensor);
  CHECK(moved.shape().size() == 5);
  for (const Tensor& empty : {Tensor(), tensor}) {
    CHECK(!empty);
    CHECK(empty.nbytes() == 0);
    CHECK(empty.shape().empty());
    CHECK(empty.data() == DeviceAddress{});
    CHECK(!empty.allocator());
    CHECK(empty.View({}, kInt8).status().code() == kState);
    CHECK(empty.CopyIn({}).code() == kState);
    CHECK(empty.CopyOut({}).code() == kState);
    CHECK(empty.host_ptr().status().code() == kState);
    CHECK(empty.ref().status().code() == kState);
  }
  tensor = moved;
  moved = std::move(tensor);
  CHECK(moved.nbytes() == 64);
  moved = *&moved;
  CHECK(moved.shape() == absl::Span<const std::int64_t>{2, 2, 2, 2, 2});
}

TEST_CASE("the buffer lives as long as the last tensor, copy or view") {
  const auto fake = std::make_shared<Fake>();
  Tensor view;
  {
    Tensor tensor = *Tensor::Over(Buffer(*Pack(FakeRecord(fake)), 64), {64}, kUInt8, {.device = DlDevice{}});
    const Tensor copy = tensor;
    view = *copy.View({8}, kUInt8, 56);
  }
  CHECK(fake->frees == 0);
  CHECK(view.CopyIn(Numbered(8)).ok());
  view = Tensor();
  CHECK(fake->frees == 1);
  CHECK(fake->live.empty());
}

TEST_CASE("errors and exceptions of the device leave nothing behind") {
  const auto fake = std::make_shared<Fake>();
  const PackedAllocator packed = *Pack(FakeRecord(fake));
  const TensorOverOptions on{.device = DlDevice{}};
  fake->on_alloc = [] { return absl::ResourceExhaustedError("full"); };
  CHECK(Tensor::Over(Buffer(packed, 64), {64}, kUInt8, on).status().code() == absl::StatusCode::kResourceExhausted);
  fake->on_alloc = [] { return absl::OkStatus(); };
  fake->on_offset = [] { return absl::InternalError("no view"); };
  CHECK(Tensor::Over(Buffer(packed, 64), {64}, kUInt8, on).status().code() == absl::StatusCode::kInternal);
  fake->on_offset = []() -> absl::Status { throw 42; };
  CHECK_THROWS_AS(Tensor::Over(Buffer(packed, 64), {64}, kUInt8, on).IgnoreError(), int);
  CHECK(fake->live.empty());
}

}  // namespace
}  // namespace packalloc
