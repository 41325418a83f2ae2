// Traced: what it writes is what happened, in RMM's format, and it never stands in the way.
#include "packalloc/layers/traced.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "packalloc/backends/cpu.h"
#include "packalloc/backends/disk.h"
#include "packalloc/backends/mock.h"
#include "packalloc/layers/lru.h"
#include "packalloc/registry.h"
#include "test/hostile_locale.h"
#include "test/in_child.h"
#include "test/temp_dir.h"
#include "tools/replay.h"
#include "tools/trace_reader.h"

namespace packalloc {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The reader holds the file to what can have happened; "+64 -64 !64" for allocate, free, allocate failure.
std::string Events(const std::string& path) {
  absl::StatusOr<TraceReader> reader = TraceReader::Open(path);
  REQUIRE(reader.ok());
  std::string events;
  TraceEvent event;
  while (true) {
    const absl::StatusOr<bool> more = reader->Next(event);
    if (!more.ok()) FAIL(more.status().message());
    if (!*more) return events;
    const char* kinds = "+!-";
    events += (events.empty() ? "" : " ") + std::string(1, kinds[static_cast<int>(event.action)]) +
              std::to_string(event.size);
  }
}

TEST_CASE("a line per allocation, failure and free; nothing for external memory and empty buffers") {
  const TempDir dir;
  const std::string file = dir / "trace.csv";
  const Allocator<MockBuf> record = MockAllocator({.capacity_bytes = 1000});
  const PackedAllocator device = *Traced(*Pack(record), {.file = file});
  const AnyBuf a = *device.alloc(64);
  CHECK(!device.alloc(2000).ok());
  CHECK(device.free(*device.alloc(0), 0).ok());
  {
    const HostileLocale hostile;
    const AnyBuf b = *device.alloc(936);
    CHECK(device.free(a, 64).ok());
    CHECK(device.free(b, 936).ok());
  }
  CHECK(Find<TracedControl>(device)->Flush().ok());
  CHECK(Events(file) == "+64 !2000 +936 -64 -936");
  const std::vector<std::string> lines = absl::StrSplit(Read(file), '\n');
  CHECK(lines.at(0) == "Thread,Time,Action,Pointer,Size,Stream,Label");
  CHECK(std::regex_match(lines.at(1),
                         std::regex("[0-9]+,[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6},allocate,0x[0-9a-f]+,64,0,")));
  CHECK(lines.back().empty());
}

TEST_CASE("labels nest, are a thread's own, and follow the buffer to its free") {
  const TempDir dir;
  const std::string file = dir / "trace.csv";
  {
    const PackedAllocator device = *Traced(*Pack(CpuAllocator()), {.file = file});
    AnyBuf buf;
    {
      const TraceLabel model("mo,del");
      const TraceLabel layer("att\"en\ntion");
      buf = *device.alloc(8);
      std::thread([&] { CHECK(device.free(*device.alloc(16), 16).ok()); }).join();
    }
    CHECK(device.free(buf, 8).ok());
  }
  const std::vector<std::string> lines = absl::StrSplit(Read(file), '\n');
  REQUIRE(lines.size() == 6);
  CHECK(lines[1].ends_with(",8,0,mo_del/att_en_tion"));
  CHECK(lines[2].ends_with(",16,0,"));
  CHECK(lines[4].ends_with(",8,0,mo_del/att_en_tion"));
  CHECK(Events(file) == "+8 +16 -16 -8");
}

TEST_CASE("a label and an allocation in the destructor of a thread-local") {
  struct AtThreadEnd {
    PackedAllocator device;
    ~AtThreadEnd() {
      const TraceLabel label("at the end");
      device.free(*device.alloc(16), 16).IgnoreError();
    }
  };
  const TempDir dir;
  const std::string file = dir / "trace.csv";
  {
    const PackedAllocator device = *Traced(*Pack(CpuAllocator()), {.file = file});
    std::thread([&] {
      static thread_local AtThreadEnd at_end{device};
      CHECK(at_end.device);
      const TraceLabel label("a label that is longer than a small string holds");
      CHECK(device.free(*device.alloc(8), 8).ok());
    }).join();
  }
  const std::vector<std::string> lines = absl::StrSplit(Read(file), '\n');
  REQUIRE(lines.size() == 6);
  CHECK(lines[1].ends_with(",8,0,a label that is longer than a small string holds"));
  CHECK(lines[3].ends_with(",16,0,at the end"));
}

TEST_CASE("a free that fails is taken back, so that the trace stays one that can have happened") {
  const TempDir dir;
  const std::string file = dir / "trace.csv";
  const Allocator<MockBuf> record = MockAllocator();
  const PackedAllocator device = *Traced(*Pack(record), {.file = file});
  const AnyBuf buf = *device.alloc(64);
  Find<MockControl>(record)->FailNth(Member::kFree, 1, absl::UnavailableError("busy"));
  CHECK(!device.free(buf, 64).ok());
  Find<MockControl>(record)->ThrowNth(Member::kAlloc, 1, std::make_exception_ptr(1));
  CHECK_THROWS(device.alloc(32).IgnoreError());
  CHECK(device.free(buf, 64).ok());
  CHECK(Find<TracedControl>(device)->Flush().ok());
  CHECK(Events(file) == "+64 -64 +64 !32 -64");
}

TEST_CASE("what it writes, replay accepts") {
  const TempDir dir;
  const std::string file = dir / "trace.csv";
  {
    const PackedAllocator device = *Open("CPU+lru+traced:file=\"" + file + "\"");
    for (int i = 0; i < 3; ++i) {
      const AnyBuf a = *device.alloc(4096);
      const AnyBuf b = *device.alloc(512);
      CHECK(device.free(a, 4096).ok());
      CHECK(device.free(b, 512).ok());
    }
  }
  Shutdown();
  const absl::StatusOr<ReplayResult> result = Replay(file, "CPU+lru", [](double) {});
  REQUIRE(result.ok());
  CHECK(result->allocations == 6);
  CHECK(result->hits == 4);
}

TEST_CASE("extents of one file share an address, and yet have lines of their own") {
  const TempDir dir;
  const std::string file = dir / "trace.csv";
  const PackedAllocator device =
      *Traced(*Pack(*DiskAllocator(dir.Write("data", std::string(100, 'x')))), {.file = file});
  const AnyBuf a = *device.alloc(50);
  const AnyBuf b = *device.alloc(50);
  CHECK(device.free(a, 50).ok());
  CHECK(device.free(b, 50).ok());
  CHECK(Find<TracedControl>(device)->Flush().ok());
  CHECK(Events(file) == "+50 +50 -50 -50");
}

TEST_CASE("killed at any moment, the file has whole lines") {
  const TempDir dir;
  const std::string file = dir / "trace.csv";
  const pid_t child = fork();
  if (child == 0) {
    const PackedAllocator device = *Traced(*Pack(CpuAllocator()), {.file = file, .block_bytes = 1000});
    for (int i = 0; i < 500; ++i) device.free(*device.alloc(64), 64).IgnoreError();
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  const std::string text = Read(file);
  CHECK(text.size() > 20000);
  CHECK(text.back() == '\n');
  CHECK(Events(file).starts_with("+64 -64"));
}

TEST_CASE("a full disk is told once and never in the way; what cannot be created is refused") {
  const TempDir dir;
  const PackedAllocator cpu = *Pack(CpuAllocator());
  for (const std::string& file :
       {std::string(), std::string("/dev/null/x"), dir.path(), dir / "none/trace.csv", std::string("a\0b", 3)}) {
    CHECK(!Traced(cpu, {.file = file}).ok());
  }
  CHECK(!Traced(cpu, {.file = dir / "x", .block_bytes = 0}).ok());
  const absl::StatusOr<PackedAllocator> device = Traced(cpu, {.file = "/dev/full", .block_bytes = 1});
  REQUIRE(device.ok());
  for (int i = 0; i < 10; ++i) CHECK(device->free(*device->alloc(64), 64).ok());
  const absl::Status flushed = Find<TracedControl>(*device)->Flush();
  CHECK(flushed.code() == absl::StatusCode::kResourceExhausted);
  CHECK(flushed.message().find("/dev/full") != std::string::npos);
}

TEST_CASE("a pipe that nobody reads is refused at once; one that is read gets the trace") {
  const TempDir dir;
  const std::string pipe = dir / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const PackedAllocator cpu = *Pack(CpuAllocator());
  CHECK(HoldsInChild([&] { return absl::IsFailedPrecondition(Traced(cpu, {.file = pipe}).status()); }));
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  REQUIRE(reader >= 0);
  {
    const absl::StatusOr<PackedAllocator> device = Traced(cpu, {.file = pipe});
    REQUIRE(device.ok());
    CHECK(device->free(*device->alloc(64), 64).ok());
    CHECK(Find<TracedControl>(*device)->Flush().ok());
    char byte = 0;
    CHECK(read(reader, &byte, 1) == 1);
  }
  close(reader);
}

TEST_CASE("a forked child writes nothing, neither its own nor what its parent has collected") {
  const TempDir dir;
  const std::string file = dir / "trace.csv";
  {
    const PackedAllocator device = *Traced(*Pack(CpuAllocator()), {.file = file});
    const AnyBuf buf = *device.alloc(64);
    const pid_t child = fork();
    if (child == 0) {
      device.alloc(1).IgnoreError();
      Find<TracedControl>(device)->Flush().IgnoreError();
      _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(device.free(buf, 64).ok());
  }
  CHECK(Events(file) == "+64 -64");
}

TEST_CASE("many threads: lines are whole, and in an order that can have happened") {
  const TempDir dir;
  const std::string file = dir / "trace.csv";
  {
    const PackedAllocator device = *Traced(*Lru(*Pack(CpuAllocator())), {.file = file, .block_bytes = 500});
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 500; ++i) {
          const AnyBuf buf = *device.alloc(64);
          if (!device.free(buf, 64).ok()) FAIL_CHECK("free failed");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(Events(file).size() == 4 * 500 * 8 - 1);
}

}  // namespace
}  // namespace packalloc
