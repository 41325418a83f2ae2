// Every entry point failing at every call, one at a time: an error instead of a crash, nothing leaked, nothing released
// twice, and a record that works as before afterwards. And a device whose memory runs out, or that is lost.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/backend.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/buffer.h"
#include "packalloc/disk_file.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "test/backends/opencl/support.h"
#include "test/backends/opencl/with_fault_layer.h"
#include "test/disk/faulty_disk.h"
#include "test/temp_dir.h"

namespace packalloc::internal {
Backend OpenClBackend();
}

namespace packalloc {
namespace {

using testing::FaultLayerControl;
using testing::layer;
using testing::OpenCl;
using testing::OwnQueue;
using testing::Pattern;

// What failed first; what goes on after an error is what a careful caller would do.
class Outcome {
 public:
  bool Note(const absl::Status& status) {
    if (!status.ok() && first_.ok()) first_ = status;
    return status.ok();
  }
  template <typename T>
  bool Note(const absl::StatusOr<T>& result) {
    return Note(result.status());
  }
  const absl::Status& first() const { return first_; }

 private:
  absl::Status first_;
};

// Frees, again where the first try fails: an error leaves the buffer as it was.
void Free(Outcome& outcome, const Allocator<OpenClBuf>& cl, const OpenClBuf& buf, const BufferSpec& spec) {
  if (outcome.Note(cl.free(buf, buf.nbytes, spec))) return;
  const absl::Status again = cl.free(buf, buf.nbytes, spec);
  CHECK_MESSAGE(again.ok(), again.ToString());
}

// The caller's own release may be the call that fails.
void GiveBack(cl_mem mem) {
  if (clReleaseMemObject(mem) != CL_SUCCESS) clReleaseMemObject(mem);
}

// Every operation of a record, on whatever of `cl` still works.
void Exercise(Outcome& outcome, const Allocator<OpenClBuf>& cl, const Allocator<OpenClBuf>& other,
              const DiskExtent& file) {
  const auto native = Find<OpenClNative>(cl);
  std::vector<std::byte> memory(4096);
  const std::vector<BufferSpec> specs = {
      {}, {.host = true}, {.zero = true}, {.external_ptr = reinterpret_cast<std::uintptr_t>(memory.data())}};
  for (const BufferSpec& spec : specs) {
    const absl::StatusOr<OpenClBuf> buf = cl.alloc(4096, spec);
    if (!outcome.Note(buf)) continue;
    outcome.Note(cl.copyin(*buf, Pattern(4096)));
    outcome.Note(cl.copy_from_disk(*buf, file, 4096));
    outcome.Note(cl.transfer(*cl.offset(*buf, 2000, 100), *buf, 2000));
    std::vector<std::byte> read(4096);
    outcome.Note(cl.copyout(absl::MakeSpan(read), *buf));
    const absl::StatusOr<cl_mem> sub = native->SubBuffer(*cl.offset(*buf, 100, cl.traits.min_alignment));
    if (outcome.Note(sub)) GiveBack(*sub);
    const absl::StatusOr<OpenClBuf> to = other.alloc(4096, {});
    if (outcome.Note(to)) {
      outcome.Note(cl.transfer(*to, *buf, 4096));
      Free(outcome, other, *to, {});
    }
    if (spec.host) outcome.Note(cl.host_ptr(*buf));
    outcome.Note(cl.synchronize());
    Free(outcome, cl, *buf, spec);
  }
}

// Opens records in every way there is, and exercises them.
absl::Status Scenario(const OwnQueue& own, const DiskExtent& file) {
  Outcome outcome;
  internal::OpenClBackend().devices();
  const absl::StatusOr<Allocator<OpenClBuf>> cl = OpenClAllocator({.max_copy_bytes = 1500});
  const absl::StatusOr<Allocator<OpenClBuf>> other = OpenClAllocator();
  if (outcome.Note(cl) && outcome.Note(other)) {
    Exercise(outcome, *cl, *other, file);
    const auto native = Find<OpenClNative>(*cl);
    cl_mem mine = clCreateBuffer(native->context(), CL_MEM_READ_WRITE, 64, nullptr, nullptr);
    if (mine != nullptr) {
      const absl::StatusOr<OpenClBuf> wrapped = native->Wrap(mine);
      if (outcome.Note(wrapped)) Free(outcome, *cl, *wrapped, {});
      GiveBack(mine);
    }
  }
  const absl::StatusOr<Allocator<OpenClBuf>> in_context = OpenClAllocator({.context = own.context()});
  const absl::StatusOr<Allocator<OpenClBuf>> on_queue = OpenClAllocator({.queue = own.queue()});
  if (outcome.Note(in_context) && outcome.Note(on_queue)) Exercise(outcome, *on_queue, *in_context, file);
  return outcome.first();
}

TEST_CASE("each entry point fails at each of its calls") {
  const OwnQueue own(testing::HasOutOfOrderQueues() ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0);
  const TempDir dir;
  const DiskExtent file{*DiskFile::Open(dir.Write("f", TextPattern(4096))), 0, 4096};
  REQUIRE(Scenario(own, file).ok());
  const std::size_t live_before = layer->live_objects();
  std::size_t swept = 0;
  for (const std::string& entry_point : layer->entry_points()) {
    std::size_t calls = 0;
    // Until a run makes no failure: then every call of a whole run has failed once.
    for (std::size_t nth = 1;; ++nth) {
      CAPTURE(entry_point);
      CAPTURE(nth);
      layer->Reset();
      layer->Fail(entry_point, nth, nth % 2 == 0 ? CL_OUT_OF_RESOURCES : CL_INVALID_OPERATION);
      const absl::Status status = Scenario(own, file);
      const bool failed = layer->failures() > 0;
      // Refused releases wait for the next call; one is enough.
      layer->Reset();
      internal::OpenClBackend().devices();
      CHECK_MESSAGE(OpenCl().synchronize().ok(), "after the failure the device works");
      CHECK_MESSAGE(layer->live_objects() == live_before, layer->Describe());
      CHECK(layer->mappings() == 0);
      if (!failed) {
        CHECK_MESSAGE(status.ok(), status.ToString());
        break;
      }
      ++calls;
    }
    std::printf("%-32s failed at each of %4zu calls\n", entry_point.c_str(), calls);
    CHECK((calls > 0 || entry_point == "clEnqueueBarrierWithWaitList"));  // only on out-of-order queues
    swept += calls;
  }
  std::printf("%-32s %4zu failures in all\n", "", swept);
  CHECK(layer->bad_releases() == 0);
}

TEST_CASE("whichever of a load's writes fails, it is one error, and the next load is whole") {
  const TempDir dir;
  const std::string bytes = TextPattern(25 << 20);
  const std::size_t nbytes = bytes.size();
  const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
  const Allocator<OpenClBuf> cl = OpenCl();
  const OpenClBuf buf = *cl.alloc(nbytes, {});
  auto system = std::make_shared<FaultyDisk>();
  system->cached_part = 0.0;
  const std::shared_ptr<DiskFile> file = *DiskFile::Open(dir.Write("f", bytes), {.system = system});
  for (std::size_t nth = 1;; ++nth) {
    CAPTURE(nth);
    layer->Reset();
    layer->Fail("clEnqueueWriteBuffer", nth, CL_OUT_OF_RESOURCES);
    const absl::Status failed = cl.copy_from_disk(buf, {file, 0, nbytes}, nbytes);
    if (layer->failures() == 0) {
      CHECK(failed.ok());
      CHECK(nth == 8);  // 25 MiB are seven pieces
      break;
    }
    CHECK(absl::IsResourceExhausted(failed));
    CHECK(layer->calls("clEnqueueWriteBuffer") == nth);
    REQUIRE(cl.copy_from_disk(buf, {file, 0, nbytes}, nbytes).ok());
    CHECK((testing::Read(cl, buf) == std::vector<std::byte>(from, from + nbytes)));
  }
  layer->Reset();
  CHECK(cl.free(buf, nbytes, {}).ok());
}

TEST_CASE("running out of memory is RESOURCE_EXHAUSTED, at creation and at first use, and nothing stays behind") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const std::size_t live_before = layer->live_objects();
  for (const char* entry_point : {"clCreateBuffer", "clEnqueueMigrateMemObjects"}) {
    for (const cl_int code : {CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_OUT_OF_HOST_MEMORY}) {
      layer->Reset();
      layer->Fail(entry_point, 1, code);
      const absl::Status status = cl.alloc(4096, {}).status();
      CHECK(absl::IsResourceExhausted(status));
      CHECK(std::string(status.message()).find("4096") != std::string::npos);
      CHECK(layer->live_objects() == live_before);
    }
  }
  layer->Reset();
  layer->Fail("clEnqueueFillBuffer", 1, CL_MEM_OBJECT_ALLOCATION_FAILURE);
  CHECK(absl::IsResourceExhausted(cl.alloc(4096, {.zero = true}).status()));
  const OpenClBuf buf = *cl.alloc(4096, {});
  layer->Fail("clEnqueueWriteBuffer", 1, CL_MEM_OBJECT_ALLOCATION_FAILURE);
  CHECK(absl::IsResourceExhausted(cl.copyin(buf, Pattern(10))));
  CHECK(cl.free(buf, 4096, {}).ok());
  layer->Reset();
  layer->Fail("clCreateBuffer", 1, CL_INVALID_VALUE);
  CHECK(absl::IsInternal(cl.alloc(4096, {}).status()));
  CHECK(layer->live_objects() == live_before);
}

TEST_CASE("a device that answers CL_OUT_OF_RESOURCES for ever gives one error per call, and quiet frees") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const OpenClBuf buf = *cl.alloc(4096, {});
  layer->Reset();
  layer->Fail("", 4, CL_OUT_OF_RESOURCES, FaultLayerControl::kForEver);
  for (int i = 0; i < 3; ++i) CHECK(cl.copyin(buf, Pattern(10)).ok());
  std::vector<std::byte> read(10);
  const std::size_t before = layer->calls();
  CHECK_FALSE(cl.copyout(absl::MakeSpan(read), buf).ok());
  CHECK(layer->calls() == before + 1);
  CHECK(cl.free(buf, 4096, {}).ok());
  layer->Reset();
  CHECK(cl.synchronize().ok());

  // The end of an owner says nothing, and what the driver refused to release then goes later.
  const std::size_t live_before = layer->live_objects();
  {
    const Buffer buffer(*Pack(cl), 4096);
    REQUIRE(buffer.CopyIn(Pattern(4096)).ok());
    layer->Fail("", 1, CL_OUT_OF_RESOURCES, FaultLayerControl::kForEver);
  }
  layer->Reset();
  const OwnQueue elsewhere;
  const Allocator<OpenClBuf> other = OpenCl({.queue = elsewhere.queue()});
  const OpenClBuf works = *other.alloc(64, {});
  CHECK(other.copyin(works, Pattern(64)).ok());
  CHECK(other.free(works, 64, {}).ok());
  CHECK(cl.synchronize().ok());
  CHECK_MESSAGE(layer->live_objects() == live_before + 2, layer->Describe());  // those of `elsewhere`
}

TEST_CASE("under a cache memory that runs out, at creation or at first use, is what the cache gives back") {
  const PackedAllocator cached = *Lru(*Pack(OpenCl()));
  const auto control = Find<LruControl>(cached);
  for (const char* entry_point : {"clCreateBuffer", "clEnqueueMigrateMemObjects"}) {
    for (const cl_int code : {CL_MEM_OBJECT_ALLOCATION_FAILURE, CL_OUT_OF_RESOURCES, CL_OUT_OF_HOST_MEMORY}) {
      CAPTURE(entry_point);
      CAPTURE(code);
      REQUIRE(cached.free(*cached.alloc(512), 512).ok());
      const LruStats before = control->stats();
      REQUIRE(before.cached_buffers == 1);
      layer->Reset();
      layer->Fail(entry_point, 1, code);
      const absl::StatusOr<AnyBuf> buf = cached.alloc(4096);
      REQUIRE_MESSAGE(buf.ok(), buf.status().ToString());
      CHECK(layer->failures() == 1);
      CHECK(control->stats().flushes == before.flushes + 1);
      CHECK(control->stats().cached_buffers == 0);
      CHECK(cached.copyin(*buf, Pattern(4096)).ok());
      CHECK(cached.free(*buf, 4096).ok());
      CHECK(control->Clear().ok());
    }
  }
}

TEST_CASE("under a cache no other error is taken for exhaustion, asked twice, or answered by releasing") {
  for (const cl_int code : {CL_INVALID_DEVICE, CL_INVALID_CONTEXT, CL_INVALID_BUFFER_SIZE, CL_DEVICE_NOT_AVAILABLE}) {
    for (const char* entry_point : {"clCreateBuffer", "clEnqueueMigrateMemObjects"}) {
      CAPTURE(entry_point);
      CAPTURE(code);
      const std::size_t live_before = layer->live_objects();
      {
        const PackedAllocator cached = *Lru(*Pack(OpenCl()));
        const auto control = Find<LruControl>(cached);
        REQUIRE(cached.free(*cached.alloc(512), 512).ok());
        layer->Reset();
        layer->Fail(entry_point, 1, code);
        const absl::Status refused = cached.alloc(4096).status();
        CHECK(refused.code() ==
              (code == CL_DEVICE_NOT_AVAILABLE ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal));
        CHECK(refused.message().find(std::to_string(code)) != std::string::npos);
        CHECK(layer->calls("clCreateBuffer") == 1);
        CHECK(control->stats().flushes == 0);
        CHECK(control->stats().cached_buffers == 1);
        CHECK(control->stats().in_use_bytes == 0);
        if (code == CL_DEVICE_NOT_AVAILABLE) CHECK(absl::IsUnavailable(cached.alloc(4096).status()));
        CHECK(layer->calls("clCreateBuffer") == 1);
      }
      CHECK_MESSAGE(layer->live_objects() == live_before, layer->Describe());
    }
  }
  layer->Reset();
}

TEST_CASE("a lost device is one error; then the record answers without driver calls, and others work") {
  const OwnQueue own;
  const std::size_t live_before = layer->live_objects();
  {
    const Allocator<OpenClBuf> cl = OpenCl();
    const Allocator<OpenClBuf> other = OpenCl({.queue = own.queue()});
    std::vector<std::byte> memory(4096);
    const BufferSpec external{.external_ptr = reinterpret_cast<std::uintptr_t>(memory.data())};
    const OpenClBuf buf = *cl.alloc(4096, {});
    const OpenClBuf over = *cl.alloc(4096, external);
    layer->Reset();
    layer->Fail("clEnqueueReadBuffer", 1, CL_INVALID_COMMAND_QUEUE);
    std::vector<std::byte> read(10);
    const absl::Status lost = cl.copyout(absl::MakeSpan(read), buf);
    CHECK(absl::IsUnavailable(lost));
    CHECK(std::string(lost.message()).find("lost") != std::string::npos);
    const std::size_t calls = layer->calls();
    CHECK(absl::IsUnavailable(cl.copyin(buf, read)));
    CHECK(absl::IsUnavailable(cl.copyout(absl::MakeSpan(read), buf)));
    CHECK(absl::IsUnavailable(cl.alloc(64, {}).status()));
    CHECK(absl::IsUnavailable(cl.transfer(buf, over, 10)));
    CHECK(absl::IsUnavailable(cl.synchronize()));
    CHECK(absl::IsUnavailable(Find<OpenClNative>(cl)->SubBuffer(buf).status()));
    CHECK(layer->calls() == calls);
    const OpenClBuf elsewhere = *other.alloc(64, {});
    CHECK(other.copyin(elsewhere, Pattern(64)).ok());
    CHECK(other.free(elsewhere, 64, {}).ok());
    CHECK(cl.free(buf, 4096, {}).ok());
    CHECK(cl.free(over, 4096, external).ok());
  }
  CHECK_MESSAGE(layer->live_objects() == live_before, layer->Describe());
}

TEST_CASE("equal ranges cost no driver object after the first sub-buffer") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const std::size_t live_before = layer->live_objects();
  const OpenClBuf base = *cl.alloc(4096, {});
  layer->Reset();
  for (int i = 0; i < 5; ++i) {
    const absl::StatusOr<cl_mem> sub = Find<OpenClNative>(cl)->SubBuffer(*cl.offset(base, 100, 1024));
    REQUIRE(sub.ok());
    clReleaseMemObject(*sub);
  }
  CHECK(layer->calls("clCreateSubBuffer") == 1);
  CHECK(cl.free(base, 4096, {}).ok());
  CHECK(layer->live_objects() == live_before);
}

TEST_CASE("no driver call copies, fills or maps more than max_copy_bytes") {
  const Allocator<OpenClBuf> cl = OpenCl({.max_copy_bytes = 1000});
  std::vector<std::byte> memory(3001);
  const BufferSpec external{.external_ptr = reinterpret_cast<std::uintptr_t>(memory.data())};
  layer->Reset();
  const OpenClBuf buf = *cl.alloc(3001, {.zero = true});
  CHECK(layer->calls("clEnqueueFillBuffer") == 4);
  const OpenClBuf over = *cl.alloc(3001, external);
  CHECK(cl.copyin(buf, Pattern(3001)).ok());
  CHECK(layer->calls("clEnqueueWriteBuffer") == 4);
  CHECK(cl.transfer(over, buf, 3001).ok());
  CHECK(layer->calls("clEnqueueCopyBuffer") == 4);
  CHECK(testing::Read(cl, buf) == Pattern(3001));
  CHECK(layer->calls("clEnqueueReadBuffer") == 4);
  // OpenCL promises that the CPU sees the bytes only where they were mapped, whatever PoCL does.
  CHECK(cl.synchronize().ok());
  CHECK(layer->calls("clEnqueueMapBuffer") == 4);
  CHECK(cl.free(over, 3001, external).ok());
  CHECK(layer->calls("clEnqueueMapBuffer") == 8);
  CHECK(layer->calls("clEnqueueUnmapMemObject") == 8);
  CHECK(memory == Pattern(3001));
  CHECK(cl.free(buf, 3001, {.zero = true}).ok());
}

TEST_CASE("what needs no driver calls none") {
  const Allocator<OpenClBuf> cl = OpenCl();
  const OpenClBuf buf = *cl.alloc(64, {});
  const OpenClBuf empty = *cl.alloc(0, {});
  layer->Reset();
  CHECK(cl.offset(buf, 0, 64).ok());
  CHECK(cl.copyin(empty, {}).ok());
  CHECK(cl.copyout({}, empty).ok());
  CHECK(cl.transfer(buf, empty, 0).ok());
  CHECK(cl.transfer(buf, buf, 64).ok());
  CHECK_FALSE(cl.alloc(SIZE_MAX, {}).ok());
  CHECK_FALSE(cl.alloc(cl.traits.max_alloc_bytes + 1, {}).ok());
  CHECK_FALSE(cl.alloc(64, {.uncached = true}).ok());
  CHECK_FALSE(cl.copyin(buf, Pattern(65)).ok());
  CHECK_FALSE(cl.offset(buf, 8, SIZE_MAX).ok());
  CHECK_FALSE(cl.free(buf, 63, {}).ok());
  CHECK(cl.free(empty, 0, {}).ok());
  CHECK(layer->calls() == 0);
  CHECK(cl.free(buf, 64, {}).ok());
}

}  // namespace
}  // namespace packalloc
