// Copies: in pieces, overlapping, between records, and in which order.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "packalloc/allocator.h"
#include "packalloc/backends/opencl.h"
#include "test/backends/opencl/support.h"

namespace packalloc {
namespace {

using testing::Gate;
using testing::Kernel;
using testing::OpenCl;
using testing::OwnQueue;
using testing::Pattern;
using testing::Read;

TEST_CASE("copies larger than one driver call go in pieces, to the last byte") {
  const Allocator<OpenClBuf> cl = OpenCl({.max_copy_bytes = 1000});
  for (const std::size_t nbytes : {999, 1000, 1001, 3000, 65537}) {
    const OpenClBuf base = *cl.alloc(nbytes + 3, {});
    const OpenClBuf a = *cl.offset(base, nbytes, 3);
    const OpenClBuf b = *cl.alloc(nbytes, {});
    REQUIRE(cl.copyin(a, Pattern(nbytes)).ok());
    REQUIRE(cl.transfer(b, a, nbytes).ok());
    CHECK(Read(cl, b) == Pattern(nbytes));
    CHECK(cl.free(base, nbytes + 3, {}).ok());
    CHECK(cl.free(b, nbytes, {}).ok());
  }
}

TEST_CASE("an overlapping transfer is a memmove, in one piece and in many") {
  struct Case {
    std::size_t dest, src, nbytes;
  };
  const std::vector<Case> cases = {{16, 0, 128}, {0, 16, 128},  {0, 0, 256},   {1, 0, 255},
                                   {0, 1, 255},  {64, 64, 100}, {100, 0, 100}, {99, 0, 100}};
  for (const std::size_t piece : {std::size_t{1} << 30, std::size_t{7}}) {
    const Allocator<OpenClBuf> cl = OpenCl({.max_copy_bytes = piece});
    for (const Case& c : cases) {
      CAPTURE(piece);
      CAPTURE(c.dest);
      CAPTURE(c.src);
      const OpenClBuf buf = *cl.alloc(256, {});
      REQUIRE(cl.copyin(buf, Pattern(256)).ok());
      std::vector<std::byte> expected = Pattern(256);
      std::memmove(expected.data() + c.dest, expected.data() + c.src, c.nbytes);
      REQUIRE(cl.transfer(*cl.offset(buf, c.nbytes, c.dest), *cl.offset(buf, c.nbytes, c.src), c.nbytes).ok());
      CHECK(Read(cl, buf) == expected);
      CHECK(cl.free(buf, 256, {}).ok());
    }
  }
}

TEST_CASE("two buffers over one piece of the caller's memory overlap too") {
  // In pieces that would overwrite what is still to be read, so that no driver does it right by luck.
  for (const std::size_t piece : {std::size_t{1} << 30, std::size_t{300}}) {
    const Allocator<OpenClBuf> cl = OpenCl({.max_copy_bytes = piece});
    std::vector<std::byte> memory = Pattern(4096);
    std::vector<std::byte> expected = memory;
    std::memmove(expected.data() + 100, expected.data(), 3000);
    const BufferSpec first{.external_ptr = reinterpret_cast<std::uintptr_t>(memory.data())};
    const BufferSpec second{.external_ptr = reinterpret_cast<std::uintptr_t>(memory.data() + 100)};
    const OpenClBuf a = *cl.alloc(3000, first);
    const OpenClBuf b = *cl.alloc(3000, second);
    REQUIRE(cl.transfer(b, a, 3000).ok());
    CHECK(cl.free(a, 3000, first).ok());
    CHECK(cl.free(b, 3000, second).ok());
    CHECK(memory == expected);
  }
}

TEST_CASE("a copyin has read its source when it returns, whatever the queue still waits for") {
  // The transfer and the kernel before it are held back by the gate, so a copyin that only enqueued would read its
  // source after the test has overwritten it. A blocking one waits for the gate, which another thread opens.
  const std::optional<std::string> device = Gate::Device();
  if (!device.has_value()) return;
  const Allocator<OpenClBuf> cl = OpenCl({.device = *device});
  const auto native = Find<OpenClNative>(cl);
  const OpenClBuf buf = *cl.alloc(4096, {});
  for (int round = 0; round < 20; ++round) {
    Gate gate(native->context());
    gate.Close(native->queue());
    std::vector<std::byte> source = Pattern(4096, round);
    std::thread opener([&gate] { gate.Open(); });
    REQUIRE(cl.copyin(buf, source).ok());
    std::fill(source.begin(), source.end(), std::byte{0xEE});
    opener.join();
    REQUIRE(cl.synchronize().ok());
    CHECK(Read(cl, buf) == Pattern(4096, round));
  }
  CHECK(cl.free(buf, 4096, {}).ok());
}

TEST_CASE("a gate shows that a driver reads the source of a non-blocking write late") {
  // Not a test of ours: the proof that the test above would see it.
  const std::optional<std::string> device = Gate::Device();
  if (!device.has_value()) return;
  const OwnQueue own(0, /*own_context=*/true, *device);
  cl_mem mem = clCreateBuffer(own.context(), CL_MEM_READ_WRITE, 4096, nullptr, nullptr);
  Gate gate(own.context());
  gate.Close(own.queue());
  std::vector<std::byte> source = Pattern(4096);
  REQUIRE(clEnqueueWriteBuffer(own.queue(), mem, CL_FALSE, 0, 4096, source.data(), 0, nullptr, nullptr) == CL_SUCCESS);
  std::fill(source.begin(), source.end(), std::byte{0xEE});
  gate.Open();
  std::vector<std::byte> read(4096);
  REQUIRE(clEnqueueReadBuffer(own.queue(), mem, CL_TRUE, 0, 4096, read.data(), 0, nullptr, nullptr) == CL_SUCCESS);
  CHECK(read == std::vector<std::byte>(4096, std::byte{0xEE}));
  clReleaseMemObject(mem);
}

// Busy long enough that a copy which does not wait for it is seen, then counts every byte up by one.
constexpr char kSlowIncrement[] = R"(
__kernel void increment(__global uchar* data, uint rounds) {
  uint x = (uint)get_global_id(0);
  for (uint i = 0; i < rounds; ++i) x = x * 1664525u + 1013904223u;
  data[get_global_id(0)] = (uchar)(data[get_global_id(0)] + 1 + (x == 0x12345678u && rounds == 1u));
})";

cl_uint BusyRounds(cl_device_id device) { return testing::IsOclgrind(device) ? 5 : 20000; }

TEST_CASE("on an out-of-order queue each operation follows what was enqueued before it and precedes what comes after") {
  if (!testing::HasOutOfOrderQueues()) return;
  const OwnQueue own(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
  const Allocator<OpenClBuf> cl = OpenCl({.queue = own.queue()});
  constexpr std::size_t kBytes = 4096;
  const cl_uint rounds = BusyRounds(own.device());
  Kernel increment(own.context(), own.device(), kSlowIncrement, "increment");
  const OpenClBuf a = *cl.alloc(kBytes, {});
  const OpenClBuf b = *cl.alloc(kBytes, {.zero = true});
  const auto run = [&](const OpenClBuf& buf) {
    increment.Set(0, buf.root);
    increment.Set(1, rounds);
    increment.Run(own.queue(), kBytes);
  };
  std::vector<std::byte> plus_one = Pattern(kBytes);
  for (std::byte& byte : plus_one) byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) + 1);
  std::vector<std::byte> plus_two = plus_one;
  for (std::byte& byte : plus_two) byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) + 1);

  for (int round = 0; round < 5; ++round) {
    REQUIRE(cl.copyin(a, Pattern(kBytes)).ok());
    run(a);                                   // after the copyin
    REQUIRE(cl.transfer(b, a, kBytes).ok());  // after the kernel
    run(b);                                   // after the transfer
    CHECK(Read(cl, b) == plus_two);           // after that kernel
    CHECK(Read(cl, a) == plus_one);
    run(a);
    REQUIRE(cl.copyin(a, Pattern(kBytes, 5)).ok());  // not overwritten by the kernel before it
    CHECK(Read(cl, a) == Pattern(kBytes, 5));
    run(a);
    REQUIRE(cl.transfer(*cl.offset(a, kBytes / 2, 1), a, kBytes / 2).ok());  // bounced, between two kernels
    run(a);
    std::vector<std::byte> expected = Pattern(kBytes, 5);
    for (std::byte& byte : expected) byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) + 1);
    std::memmove(expected.data() + 1, expected.data(), kBytes / 2);
    for (std::byte& byte : expected) byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) + 1);
    CHECK(Read(cl, a) == expected);
  }
  CHECK(cl.free(a, kBytes, {}).ok());
  CHECK(cl.free(b, kBytes, {.zero = true}).ok());
}

TEST_CASE("a transfer between two records of one context is ordered with the work of both") {
  const std::string second = OpenClAllocator({.device = "1"}).ok() ? "1" : "0";
  const Allocator<OpenClBuf> here = OpenCl({.device = "0"});
  const Allocator<OpenClBuf> there = OpenCl({.device = second});
  if (here.traits.transfer_domain != there.traits.transfer_domain) {
    MESSAGE("the two devices are of two platforms: no transfer between them");
    return;
  }
  CHECK(Find<OpenClNative>(here)->context() == Find<OpenClNative>(there)->context());
  constexpr std::size_t kBytes = 4096;
  const cl_uint rounds = BusyRounds(Find<OpenClNative>(here)->device());
  const auto native = Find<OpenClNative>(here);
  Kernel increment(native->context(), native->device(), kSlowIncrement, "increment");
  const OpenClBuf from = *here.alloc(kBytes, {});
  const OpenClBuf to = *there.alloc(kBytes, {});
  for (int round = 0; round < 5; ++round) {
    REQUIRE(here.copyin(from, Pattern(kBytes)).ok());
    increment.Set(0, from.root);
    increment.Set(1, rounds);
    increment.Run(native->queue(), kBytes);
    // By the destination's record, which has to wait for the source's kernel; and the next kernel for it.
    REQUIRE(there.transfer(to, from, kBytes).ok());
    increment.Run(native->queue(), kBytes);
    std::vector<std::byte> expected = Pattern(kBytes);
    for (std::byte& byte : expected) byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) + 1);
    CHECK(Read(there, to) == expected);
    // By the source's record; the destination's copyout has to wait.
    REQUIRE(here.transfer(to, from, kBytes).ok());
    for (std::byte& byte : expected) byte = static_cast<std::byte>(std::to_integer<unsigned>(byte) + 1);
    CHECK(Read(there, to) == expected);
  }
  CHECK(here.free(from, kBytes, {}).ok());
  CHECK(there.free(to, kBytes, {}).ok());
}

TEST_CASE("buffers of two contexts have two transfer domains") {
  const OwnQueue own;
  const Allocator<OpenClBuf> adopted = OpenCl({.queue = own.queue()});
  const Allocator<OpenClBuf> cl = OpenCl();
  CHECK(adopted.traits.transfer_domain != cl.traits.transfer_domain);
  CHECK(adopted.traits.memory_domain == cl.traits.memory_domain);
  const OpenClBuf a = *adopted.alloc(64, {});
  const OpenClBuf b = *cl.alloc(64, {});
  CHECK(absl::IsInvalidArgument(cl.transfer(b, a, 64)));
  CHECK(absl::IsInvalidArgument(cl.transfer(a, b, 64)));
  CHECK(adopted.free(a, 64, {}).ok());
  CHECK(cl.free(b, 64, {}).ok());
}

TEST_CASE("random copies agree with memory") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto below = [&random](std::size_t n) { return random() % n; };
  constexpr std::size_t kBytes = 5000;
  const OwnQueue own(testing::HasOutOfOrderQueues() ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0);
  for (const OpenClOptions& options :
       {OpenClOptions{.max_copy_bytes = 777}, OpenClOptions{.queue = own.queue(), .max_copy_bytes = 512}}) {
    const Allocator<OpenClBuf> cl = OpenCl(options);
    std::vector<std::vector<std::byte>> model(3, Pattern(kBytes));
    std::vector<OpenClBuf> bufs;
    for (const std::vector<std::byte>& content : model) {
      bufs.push_back(*cl.alloc(kBytes, {}));
      REQUIRE(cl.copyin(bufs.back(), content).ok());
    }
    for (int step = 0; step < 300; ++step) {
      const std::size_t nbytes = below(2000);
      const std::size_t to = below(3);
      const std::size_t from = below(3);
      const std::size_t to_at = below(kBytes - nbytes);
      const std::size_t from_at = below(kBytes - nbytes);
      const OpenClBuf dest = *cl.offset(bufs[to], nbytes, to_at);
      if (below(3) == 0) {
        const std::vector<std::byte> fresh = Pattern(nbytes, below(251));
        REQUIRE(cl.copyin(dest, fresh).ok());
        std::copy(fresh.begin(), fresh.end(), model[to].begin() + static_cast<std::ptrdiff_t>(to_at));
      } else {
        REQUIRE(cl.transfer(dest, *cl.offset(bufs[from], nbytes, from_at), nbytes).ok());
        std::memmove(model[to].data() + to_at, model[from].data() + from_at, nbytes);
      }
    }
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(Read(cl, bufs[i]) == model[i]);
      CHECK(cl.free(bufs[i], kBytes, {}).ok());
    }
  }
}

TEST_CASE("threads share a record") {
  const Allocator<OpenClBuf> cl = OpenCl();
  if (testing::IsOclgrind(Find<OpenClNative>(cl)->device())) {
    MESSAGE("left out: Oclgrind crashes when two threads make buffers");
    return;
  }
  std::vector<std::thread> threads;
  std::vector<std::string> failures(4);
  std::vector<std::byte> memory(4 * 4096);
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&cl, &failure = failures[t], mine = memory.data() + t * 4096, t] {
      for (unsigned i = 0; i < 50 && failure.empty(); ++i) {
        const BufferSpec spec =
            i % 3 == 0 ? BufferSpec{.external_ptr = reinterpret_cast<std::uintptr_t>(mine)} : BufferSpec{};
        const absl::StatusOr<OpenClBuf> buf = cl.alloc(4096, spec);
        absl::Status status = buf.status();
        std::vector<std::byte> read(4096);
        if (status.ok()) status = cl.copyin(*buf, Pattern(4096, t + i));
        if (status.ok()) status = cl.synchronize();
        if (status.ok()) status = cl.copyout(absl::MakeSpan(read), *buf);
        if (status.ok() && read != Pattern(4096, t + i)) status = absl::InternalError("other bytes came back");
        if (status.ok()) status = cl.free(*buf, 4096, spec);
        failure = std::string(status.message());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& failure : failures) CHECK(failure == "");
}

}  // namespace
}  // namespace packalloc
