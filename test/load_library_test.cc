#include "lib/load_library.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <string>

#include "test/in_child.h"
#include "test/temp_dir.h"

namespace packalloc {
namespace {

TEST_CASE("a library is loaded; what is none is refused with the reason, a pipe at once") {
  CHECK(LoadLibrary("libc.so.6").ok());
  const TempDir dir;
  const std::string pipe = dir / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {pipe, dir.path(), dir / "missing.so", dir.Write("text.so", "text")}) {
    CAPTURE(path);
    CHECK(HoldsInChild([&] {
      const absl::Status status = LoadLibrary(path).status();
      return absl::IsUnavailable(status) && status.message().find(path) != absl::string_view::npos;
    }));
  }
}

TEST_CASE("the name of a library is escaped in its error") {
  const TempDir dir;
  for (const std::string& path : {dir / "\x1b[2J", dir.Write("\x1b[3J", "text")}) {
    const absl::Status status = LoadLibrary(path).status();
    CHECK(status.message().find("\\x1b[") != absl::string_view::npos);
    CHECK(status.message().find('\x1b') == absl::string_view::npos);
  }
}

}  // namespace
}  // namespace packalloc
