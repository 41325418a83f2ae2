#include "tools/trace_reader.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <random>
#include <string>
#include <vector>

#include "test/temp_dir.h"

namespace packalloc {
namespace {

using Action = TraceEvent::Action;

const std::string kHeader = "Thread,Time,Action,Pointer,Size,Stream\n";

struct Trace {
  absl::Status status;
  std::vector<TraceEvent> events;
  std::size_t live_count = 0;
  std::uint64_t live_bytes = 0;
};

Trace ReadFile(const std::string& path) {
  Trace trace;
  absl::StatusOr<TraceReader> reader = TraceReader::Open(path);
  if (!reader.ok()) {
    trace.status = reader.status();
    return trace;
  }
  while (true) {
    TraceEvent event;
    absl::StatusOr<bool> more = reader->Next(event);
    trace.status = more.status();
    if (!more.ok() || !*more) break;
    trace.events.push_back(event);
  }
  trace.live_count = reader->live_count();
  trace.live_bytes = reader->live_bytes();
  CHECK(reader->bytes_read() <= reader->bytes_total());
  return trace;
}

Trace Read(const std::string& text) {
  const TempDir directory;
  return ReadFile(directory.Write("t.csv", text));
}

void CheckFault(const std::string& text, const std::string& says) {
  CAPTURE(text);
  const Trace trace = Read(text);
  CHECK(trace.status.code() == absl::StatusCode::kInvalidArgument);
  const std::string message(trace.status.message());
  CHECK_MESSAGE(message.find("/t.csv:" + says) != std::string::npos, message);
  CHECK(message.find('\n') == std::string::npos);
}

TEST_CASE("events come in order, with slots that are reused") {
  const Trace trace = Read(kHeader +
                           "1,0,allocate,0xA,10,0\n"
                           "1,1,allocate,0xB,20,0\n"
                           "1,2,free,0xa,10,0\n"
                           "1,2,allocate failure,0x0,99999,0\n"
                           "1,3,allocate,0xC,30,0\n"
                           "1,4,allocate,0xA,0,0\n");
  REQUIRE(trace.status.ok());
  REQUIRE(trace.events.size() == 6);
  CHECK(trace.events[0].action == Action::kAllocate);
  CHECK(trace.events[0].size == 10);
  CHECK(trace.events[0].line == 2);
  CHECK(trace.events[1].slot != trace.events[0].slot);
  CHECK(trace.events[2].action == Action::kFree);
  CHECK(trace.events[2].slot == trace.events[0].slot);
  CHECK(trace.events[3].action == Action::kAllocateFailure);
  CHECK(trace.events[3].size == 99999);
  CHECK(trace.events[4].slot == trace.events[0].slot);
  CHECK(trace.events[5].slot == 2);
  CHECK(trace.live_count == 3);
  CHECK(trace.live_bytes == 50);
}

TEST_CASE("forms that are tolerated") {
  struct {
    const char* what;
    std::string text;
    std::size_t events;
  } const cases[] = {
      {"CR LF", "Thread,Time,Action,Pointer,Size,Stream\r\n1,0,allocate,0x1,8,0\r\n1,0,free,0x1,8,0\r\n", 2},
      {"no header", "1,0,allocate,0x1,8,0\n1,0,free,0x1,8,0\n", 2},
      {"no newline at the end", kHeader + "1,0,allocate,0x1,8,0", 1},
      {"empty lines", "\n" + kHeader + "\n1,0,allocate,0x1,8,0\n\n \n1,0,free,0x1,8,0\n\n", 2},
      {"a header only", kHeader, 0},
      {"further columns", "Thread,Time,Action,Pointer,Size,Stream,Pool\n1,0,allocate,0x1,8,0,a\n1,0,free,0x1,8,0,b\n",
       2},
      {"further columns without a header", "1,0,allocate,0x1,8,0,a,b\n", 1},
      {"columns in another order", "Size,Action,Pointer,Thread,Time,Stream\n8,allocate,0x1,1,0,0\n8,free,0x1,1,0,0\n",
       2},
      {"decimal pointers, other times and threads",
       kHeader + "t-1,10:11:12.13,allocate,17,8,0x7f\nt-2,x,free,0x11,8,\n", 2},
      {"blanks, a byte order mark", "\xEF\xBB\xBF" + kHeader + " 1 , 0 , allocate , 0x1 , 8 , 0 \n", 1},
      {"a pointer used again after its free", kHeader + "1,0,allocate,1,8,0\n1,0,free,1,8,0\n1,0,allocate,1,9,0\n", 3},
      {"allocations of no bytes that share the null pointer",
       kHeader + "1,0,allocate,0x0,0,0\n1,0,allocate,0x0,0,0\n1,0,free,0x0,0,0\n1,0,free,0x0,0,0\n", 4},
      {"a failure of more bytes than any device has", kHeader + "1,0,allocate failure,0x0,9223372036854775808,0\n", 1},
  };
  for (const auto& c : cases) {
    CAPTURE(c.what);
    const Trace trace = Read(c.text);
    CHECK_MESSAGE(trace.status.ok(), trace.status.ToString());
    CHECK(trace.events.size() == c.events);
  }
}

TEST_CASE("allocations of no bytes at the null pointer are live, in slots of their own") {
  const Trace trace = Read(kHeader + "1,0,allocate,0x0,0,0\n1,0,allocate,0xA,8,0\n1,0,allocate,0x0,0,0\n");
  REQUIRE(trace.events.size() == 3);
  CHECK(trace.live_count == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(trace.events[i].slot == i);
}

TEST_CASE("what cannot have happened names file and line") {
  CheckFault(kHeader + "1,0,free,0x1,8,0\n", "2: 0x1 is freed, but it is not allocated");
  CheckFault(kHeader + "1,0,allocate,0x1,8,0\n1,0,free,0x1,8,0\n1,0,free,0x1,8,0\n", "4: 0x1 is freed, but it is not");
  CheckFault(kHeader + "1,0,allocate,0x0,0,0\n1,0,free,0x0,0,0\n1,0,free,0x0,0,0\n", "4: 0x0 is freed, but it is not");
  CheckFault(kHeader + "1,0,allocate,0x1,8,0\n\n1,0,allocate,0x1,9,0\n",
             "4: 0x1 is allocated again, but it is live since line 2");
  CheckFault(kHeader + "1,0,allocate,0x1,8,0\r\n1,0,free,0x1,16,0\r\n",
             "3: 0x1 is freed with 16 bytes, but line 2 allocated it with 8");
}

TEST_CASE("sizes that no device has, or that are no sizes") {
  for (const char* size : {"-8", "-1", "18446744073709551616", "99999999999999999999", "8.0", "1e3", "0x8", "", "abc",
                           "8B", "1.048.576", "1 0"}) {
    CheckFault(kHeader + "1,0,allocate,0x1," + size + ",0\n", "2: the size '" + std::string(size) + "' is not");
    CheckFault(kHeader + "1,0,allocate failure,0x0," + size + ",0\n", "2: the size '" + std::string(size) + "' is not");
  }
  for (const char* size : {"18446744073709551615", "9223372036854775808", "9223372036854775807", "1125899906842625"}) {
    CheckFault(kHeader + "1,0,allocate,0x1," + size + ",0\n",
               "2: a size of " + std::string(size) + " bytes is more than");
  }
  CheckFault(kHeader + "1,0,allocate,1,1125899906842624,0\n1,0,allocate,2,1,0\n",
             "3: with these 1 bytes, 1125899906842625 are live");
}

TEST_CASE("pointers, actions and columns") {
  for (const char* pointer : {"", "-1", "0x", "xyz", "0x1g", "0x10000000000000000", "18446744073709551616", "+1"}) {
    CheckFault(kHeader + "1,0,allocate," + pointer + ",8,0\n", "2: the pointer '" + std::string(pointer) + "' is not");
  }
  for (const char* action : {"", "Allocate", "alloc", "allocate_failure", "deallocate"}) {
    CheckFault(kHeader + "1,0," + action + ",0x1,8,0\n",
               "2: unknown action '" + std::string(action) + "'; known: allocate");
  }
  CheckFault(kHeader + "1,0,allocate,0x1,8\n", "2: a column is missing: the line has 5 of 6");
  CheckFault(kHeader + "1\n", "2: a column is missing: the line has 1 of 6");
  CheckFault("1,0,allocate,0x1,8\n", "1: a column is missing: the line has 5 of 6");
  CheckFault("Thread,Time,Action,Pointer,Stream\n", "1: the header has no column Size");
  CheckFault("Thread,Time,Action,Size,Stream\n", "1: the header has no column Pointer");
  CheckFault("Thread,Time,Pointer,Size,Stream\n", "1: the header has no column Action");
  CheckFault("Time,Action,Pointer,Size,Stream\n", "1: the header has no column Thread");
  CheckFault("Thread,Time,Action,Pointer,Size\n", "1: the header has no column Stream");
}

TEST_CASE("files that are no traces") {
  CheckFault("", "1: the file is empty");
  CheckFault("\n\r\n  \n", "1: the file is empty");
  CheckFault(kHeader + std::string("1,0,allocate,0x1,8\0,0\n", 22), "2: the line holds a NUL byte");
  CheckFault(std::string(100, '\0'), "1: the line holds a NUL byte");
  CheckFault(std::string(1 << 20, 'x'), "1: the line is longer than 65536 bytes");
  CheckFault(kHeader + std::string(1 << 20, ','), "2: the line is longer than 65536 bytes");
  CheckFault("{\"json\": [1, 2]}\n", "1: a column is missing");

  const TempDir directory;
  const auto refused = [](const std::string& path, absl::StatusCode code, const std::string& says) {
    CAPTURE(path);
    const absl::Status status = TraceReader::Open(path).status();
    CHECK(status.code() == code);
    CHECK_MESSAGE(std::string(status.message()).find(says) != std::string::npos, status.ToString());
  };
  refused(directory.path(), absl::StatusCode::kInvalidArgument, "is a directory");
  refused(directory / "none.csv", absl::StatusCode::kNotFound, "none.csv");
  refused("", absl::StatusCode::kNotFound, "''");
  refused("/dev/null", absl::StatusCode::kInvalidArgument, "no regular file");
  refused(std::string("a\0b", 3), absl::StatusCode::kInvalidArgument, "NUL");
  const std::string fifo = directory / "fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  refused(fifo, absl::StatusCode::kInvalidArgument, "no regular file");
}

TEST_CASE("lines that lie across the ends of reads are whole") {
  std::string text = kHeader;
  constexpr int kEvents = 30000;
  for (int i = 0; i < kEvents; ++i)
    text += "1,0,allocate," + std::to_string(i) + "," + std::to_string(i % 1000) + ",0\n";
  const Trace trace = Read(text);
  REQUIRE(trace.status.ok());
  REQUIRE(trace.events.size() == kEvents);
  for (int i = 0; i < kEvents; ++i) {
    REQUIRE(trace.events[i].size == static_cast<std::uint64_t>(i % 1000));
    REQUIRE(trace.events[i].line == static_cast<std::uint64_t>(i + 2));
  }
}

TEST_CASE("damaged traces are read or refused") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::string good = kHeader +
                           "1,0,allocate,0x1,8,0\n1,1,allocate,0x2,16,0\n1,2,free,0x1,8,0\n"
                           "1,3,allocate failure,0x0,4096,0\n1,4,free,0x2,16,0\n";
  const std::string alphabet("0129,\n\r -xafz\0\xff\"", 17);
  for (int i = 0; i < 300; ++i) {
    std::string text = good;
    for (std::uint32_t changes = 1 + random() % 4; changes > 0; --changes) {
      text[random() % text.size()] = alphabet[random() % alphabet.size()];
    }
    const Trace trace = Read(text);
    if (!trace.status.ok()) CHECK(std::string(trace.status.message()).find("/t.csv:") != std::string::npos);
  }
}

}  // namespace
}  // namespace packalloc
