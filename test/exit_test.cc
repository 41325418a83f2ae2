// Buffers, tensors and C handles in static objects, which are destroyed when the process exits: each case in a child of
// its own.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/disk.h"
#include "packalloc/backends/mock.h"
#include "packalloc/backends/null.h"
#include "packalloc/buffer.h"
#include "packalloc/c/packalloc.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/tensor/dlpack.h"
#include "packalloc/tensor/tensor.h"
#include "packalloc/tensor/tensor_pool.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

// NOLINTBEGIN(cert-err58-cpp): what is tested
std::vector<Buffer> buffers;
std::vector<TensorPool> pools;
std::vector<Tensor> tensors;
std::vector<DlpackPtr> exports;
// NOLINTEND(cert-err58-cpp)

struct Child {
  int status;
  std::string output;
};

// Runs `work` in a child, with what it prints caught.
Child RunChild(const std::function<void()>& work) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  std::fflush(nullptr);  // or the child prints what is buffered here
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    work();
    std::exit(0);
  }
  close(ends[1]);
  Child child{-1, ""};
  char text[256];
  for (ssize_t n = 0; (n = read(ends[0], text, sizeof text)) > 0;) child.output.append(text, static_cast<size_t>(n));
  close(ends[0]);
  waitpid(pid, &child.status, 0);
  return child;
}

// Leaves what `fill` makes to the end of the process, by return from main and by exit on another thread.
void GoesQuietly(const std::function<void()>& fill) {
  const Child by_return = RunChild(fill);
  CHECK(by_return.status == 0);
  CHECK(by_return.output == "");
  const Child by_worker = RunChild([&fill] {
    fill();
    std::thread([] { std::exit(0); }).join();
  });
  CHECK(by_worker.status == 0);
  CHECK(by_worker.output == "");
}

void Fill(const PackedAllocator& packed) {
  for (std::size_t i = 0; i < 8; ++i) {
    buffers.emplace_back(packed, i * 100);
    if (!buffers.back().Allocate().ok()) std::_Exit(3);
    buffers.push_back(*buffers.back().View(i, i));
    if (!buffers.back().Allocate().ok()) std::_Exit(3);
  }
  buffers.emplace_back(packed, 5 << 20);
  if (!buffers.back().Allocate().ok()) std::_Exit(3);
}

PackedAllocator Broken(decltype(Allocator<void*>::free) free) {
  Allocator<void*> record = NullAllocator();
  record.free = std::move(free);
  return *Pack(record);
}

absl::Status Deinitialized(void* const&, std::size_t, const BufferSpec&) { return absl::UnavailableError("gone"); }
absl::Status Throws(void* const&, std::size_t, const BufferSpec&) { throw std::runtime_error("gone"); }

TEST_CASE("buffers in static objects go quietly at exit, from main and from a worker thread") {
  const TempDir dir;
  const std::string path = dir.Write("f", std::string(5 << 20, 'x'));
  const std::vector<std::pair<const char*, std::function<PackedAllocator()>>> devices = {
      {"CPU", [] { return *Pack(CpuAllocator()); }},
      {"NULL", [] { return *Pack(NullAllocator()); }},
      {"MOCK", [] { return *Pack(MockAllocator({.lazy = true})); }},
      {"DISK", [&path] { return *Pack(*DiskAllocator(path)); }},
      {"driver gone", [] { return Broken(Deinitialized); }},
      {"driver throws", [] { return Broken(Throws); }},
  };
  for (const auto& [name, make] : devices) {
    const std::string device(name);  // a structured binding cannot be captured
    CAPTURE(device);
    for (int run = 0; run < 20; ++run) {
      GoesQuietly([&make = make] {
        const PackedAllocator packed = make();
        Fill(packed);
        Fill(*Lru(packed));
        if (!Buffer(buffers.back().allocator(), 7000).Allocate().ok()) std::_Exit(3);  // lies in the cache
      });
    }
  }
}

TEST_CASE("pools, tensors and exports in static objects go quietly at exit") {
  for (int run = 0; run < 20; ++run) {
    GoesQuietly([] {
      pools.push_back(*TensorPool::Make(*Pack(CpuAllocator())));
      tensors.push_back(*pools.front().Empty({100}, kFloat32));
      tensors.push_back(*pools.front().CreateView(tensors.front(), {1}, kInt8, 7));
      if (!pools.front().Empty({5000}, kFloat32).ok()) std::_Exit(3);
      exports.push_back(*ToDlpack(tensors.back()));
    });
  }
}

TEST_CASE("what a C program leaves open goes quietly at exit") {
  for (int run = 0; run < 20; ++run) {
    GoesQuietly([] {
      for (const char* name : {"CPU", "CPU+lru", "MOCK+lru+counted"}) {
        packalloc_allocator* device = nullptr;
        packalloc_buffer* buffer = nullptr;
        packalloc_buffer* view = nullptr;
        packalloc_buffer* cached = nullptr;
        if (packalloc_open(name, &device) != PACKALLOC_OK) std::_Exit(3);
        if (packalloc_alloc(device, 4096, nullptr, &buffer) != PACKALLOC_OK) std::_Exit(3);
        if (packalloc_offset(buffer, 64, 64, &view) != PACKALLOC_OK) std::_Exit(3);
        if (packalloc_alloc(device, 100, nullptr, &cached) != PACKALLOC_OK) std::_Exit(3);
        if (packalloc_free(cached) != PACKALLOC_OK) std::_Exit(3);
      }
    });
  }
}

TEST_CASE("a wrapped buffer in a static object calls its deleter at exit") {
  const Child child = RunChild([] {
    static char memory[64];
    buffers.push_back(
        Buffer::Wrap(*Pack(CpuAllocator()), memory, sizeof memory, [] { static_cast<void>(write(1, "x", 1)); }));
    if (!buffers.back().Allocate().ok()) std::_Exit(3);
  });
  CHECK(child.status == 0);
  CHECK(child.output == "x");
}

}  // namespace
}  // namespace packalloc
