// The command `packalloc`: see what devices there are, try them on recorded traces, load models onto them.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/parse.h"
#include "tools/command.h"

namespace packalloc {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

int Fail(absl::string_view message) {
  const std::string line = absl::StrCat("packalloc: ", Printable(message), "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
  return kFailure;
}

// All of `text` has arrived, or the status says that it has not: a full disk shows only when the last byte is written.
int Write(const std::string& text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return Fail(absl::StrCat("writing to stdout failed: ", std::strerror(errno)));
  }
  return 0;
}

// A standard stream that the caller has closed must not become the number of a file that is opened later. The stand-in
// cannot be written to, so a closed stdout is still found out.
void HoldStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
      [[maybe_unused]] const int held = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
  }
}

int Main(int argc, char** argv) {
  HoldStandardStreams();
  CLI::App app(
      "Device memory of any backend: what there is, how a cache does on recorded traces, how fast a model loads.",
      "packalloc");
  app.set_version_flag("--version", PACKALLOC_VERSION);
  app.require_subcommand(1);
  Command chosen;
  AddDevicesCommand(app, chosen);
  AddReplayCommand(app, chosen);
  AddLoadCommand(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return Write(app.help());
  } catch (const CLI::CallForAllHelp&) {
    return Write(app.help("", CLI::AppFormatMode::All));
  } catch (const CLI::CallForVersion&) {
    return Write(PACKALLOC_VERSION "\n");
  } catch (const CLI::RequiredError& error) {
    const std::vector<std::string> unknown = app.remaining();
    Fail(absl::StrCat(unknown.empty() ? error.what() : absl::StrCat("there is no command ", Quoted(unknown.front())),
                      " (packalloc --help tells more)"));
    return kUsage;
  } catch (const CLI::ParseError& error) {
    Fail(absl::StrCat(error.what(), " (packalloc --help tells more)"));
    return kUsage;
  }
  const absl::StatusOr<std::string> text = chosen();
  return text.ok() ? Write(*text) : Fail(text.status().message());
}

}  // namespace
}  // namespace packalloc

int main(int argc, char** argv) {
  try {
    return packalloc::Main(argc, argv);
  } catch (const std::exception& error) {
    return packalloc::Fail(error.what());
  }
}
