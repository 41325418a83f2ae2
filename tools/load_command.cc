// packalloc load FILE [--device NAME] [--verify] [--json]: a model's tensors onto a device, as fast as the disk allows.
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/parse.h"
#include "tools/command.h"
#include "tools/load.h"
#include "tools/progress.h"

namespace packalloc {
namespace {

double Rate(const LoadResult& result) {
  return result.seconds > 0 ? static_cast<double>(result.bytes) / result.seconds / 1e9 : 0;
}

nlohmann::ordered_json Json(const LoadResult& result) {
  nlohmann::ordered_json json{{"device", result.device},
                              {"tensors", result.tensors},
                              {"bytes", result.bytes},
                              {"seconds", result.seconds},
                              {"gb_per_s", Rate(result)},
                              {"path", ToString(result.path)},
                              {"page_cache_bytes", result.read.page_cache_bytes},
                              {"io_uring_bytes", result.read.io_uring_bytes},
                              {"direct_bytes", result.read.direct_bytes},
                              {"buffered_bytes", result.read.buffered_bytes}};
  if (!result.read.direct_refused.empty()) json["direct_refused"] = result.read.direct_refused;
  if (!result.read.io_uring_refused.empty()) json["io_uring_refused"] = result.read.io_uring_refused;
  json["verified"] = result.checksum.has_value();
  if (result.checksum) json["crc32"] = absl::StrFormat("%08x", *result.checksum);
  return json;
}

std::string Sentence(const std::string& path, const LoadResult& result) {
  std::string text = absl::StrFormat("%s: %d tensor%s, %d bytes to %s in %.3f s, %.2f GB/s, by %s\n", Printable(path),
                                     result.tensors, result.tensors == 1 ? "" : "s", result.bytes,
                                     Printable(result.device), result.seconds, Rate(result), ToString(result.path));
  absl::StrAppendFormat(&text, "read: %d bytes from the page cache, %d by io_uring, %d by direct pread, %d by pread\n",
                        result.read.page_cache_bytes, result.read.io_uring_bytes, result.read.direct_bytes,
                        result.read.buffered_bytes);
  if (!result.read.direct_refused.empty()) {
    absl::StrAppend(&text, "no direct I/O: ", result.read.direct_refused, "\n");
  }
  if (!result.read.io_uring_refused.empty()) {
    absl::StrAppend(&text, "no io_uring: ", result.read.io_uring_refused, "\n");
  }
  if (result.checksum) absl::StrAppendFormat(&text, "verified: CRC-32 %08x, as the file's\n", *result.checksum);
  return text;
}

}  // namespace

void AddLoadCommand(CLI::App& app, Command& chosen) {
  struct Options {
    std::string file;
    std::string device = "CPU";
    bool verify = false;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("load", "Load a model's tensors onto a device");
  command->add_option("FILE", options->file, "*.safetensors, *.index.json (sharded), or any file of bytes")->required();
  command->add_option("--device", options->device, "Such as CPU, CL, CUDA:1+lru")->capture_default_str();
  command->add_flag("--verify", options->verify, "Copy the bytes back and compare their CRC-32 with the file's");
  command->add_flag("--json", options->json, "An object for programs");
  command->callback([&chosen, options] {
    chosen = [options]() -> absl::StatusOr<std::string> {
      absl::StatusOr<LoadResult> result;
      {
        Progress progress("load to " + options->device);
        result =
            Load(options->file, options->device, options->verify, [&progress](std::uint64_t done, std::uint64_t total) {
              progress.Show(done, total);
              return true;
            });
      }
      if (!result.ok()) return result.status();
      return options->json ? Text(Json(*result)) : Sentence(options->file, *result);
    };
  });
}

}  // namespace packalloc
