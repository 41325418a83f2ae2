// What cuda_process_test runs: a program that uses the CUDA backend, in a process of its own. The driver is the one
// that PACKALLOC_LIBCUDA names.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "packalloc/backends/cuda.h"
#include "packalloc/buffer.h"
#include "packalloc/layers/lru.h"
#include "packalloc/packed_allocator.h"
#include "packalloc/registry.h"

namespace {

using packalloc::Buffer;
using packalloc::PackedAllocator;

// Made before the driver is loaded, so destroyed after it has gone.
std::vector<Buffer> global_buffers;
std::vector<PackedAllocator> global_allocators;

int Devices() {
  for (const packalloc::DeviceInfo& device : packalloc::Devices()) {
    if (device.name.rfind("CUDA", 0) != 0) continue;
    std::printf("%s %s\n", device.name.c_str(), device.available ? "available" : device.reason.c_str());
  }
  const absl::Status opened = packalloc::Open("CUDA").status();
  std::printf("open: %s\n", opened.ToString().c_str());
  const absl::Status seventh = packalloc::Open("CUDA:7").status();
  std::printf("open 7: %s\n", seventh.ToString().c_str());
  return packalloc::Open("CPU").ok() ? 0 : 1;
}

bool FillGlobals() {
  absl::StatusOr<packalloc::Allocator<packalloc::CudaBuf>> record = packalloc::CudaAllocator();
  if (!record.ok()) return false;
  absl::StatusOr<PackedAllocator> packed = packalloc::Pack(*record);
  if (!packed.ok()) return false;
  absl::StatusOr<PackedAllocator> cached = packalloc::Lru(*packed);
  if (!cached.ok()) return false;
  const std::vector<std::byte> bytes(5000);
  for (const PackedAllocator& allocator : {*packed, *cached}) {
    for (const bool host : {false, true}) {
      for (int i = 0; i < 3; ++i) {
        Buffer buffer(allocator, bytes.size(), {.host = host});
        if (!buffer.CopyIn(bytes).ok()) return false;
        global_buffers.push_back(buffer);
        if (absl::StatusOr<Buffer> view = buffer.View(100, 50); view.ok()) global_buffers.push_back(*view);
      }
      Buffer passing(allocator, 700, {.host = host});  // lies in the cache at the end
      if (!passing.Allocate().ok()) return false;
    }
    global_allocators.push_back(allocator);
  }
  return true;
}

int Fork() {
  absl::StatusOr<packalloc::Allocator<packalloc::CudaBuf>> record = packalloc::CudaAllocator();
  if (!record.ok()) return 1;
  absl::StatusOr<packalloc::CudaBuf> buf = record->alloc(100, {});
  if (!buf.ok()) return 1;
  std::vector<std::byte> bytes(100);
  if (!record->copyin(*buf, bytes).ok()) return 1;
  const pid_t child = fork();
  if (child == 0) {
    const auto refused = [](const absl::Status& status) {
      return status.code() == absl::StatusCode::kFailedPrecondition &&
             status.message().find("fork") != std::string::npos;
    };
    const bool all = refused(record->alloc(1, {}).status()) && refused(record->copyin(*buf, bytes)) &&
                     refused(record->copyout(absl::MakeSpan(bytes), *buf)) &&
                     refused(record->transfer(packalloc::CudaBuf{.ptr = 1, .nbytes = 1}, *buf, 1)) &&
                     refused(record->synchronize()) && refused(record->memory_info().status()) &&
                     refused(record->host_ptr(*buf).status()) && refused(record->free(*buf, 100, {})) &&
                     refused(packalloc::CudaAllocator().status());
    record = absl::CancelledError();  // the last copy goes without a word to the driver
    _exit(all ? 0 : 1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return 2;
  return record->copyout(absl::MakeSpan(bytes), *buf).ok() && record->free(*buf, 100, {}).ok() ? 0 : 3;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "devices") return Devices();
  if (mode == "fork") return Fork();
  if (mode == "return") return FillGlobals() ? 0 : 1;
  if (mode == "exit-from-thread") {
    if (!FillGlobals()) return 1;
    std::thread([] { std::exit(0); }).join();
  }
  return 2;
}
