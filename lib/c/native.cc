#include "lib/c/native.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/parse.h"
#include "packalloc/backends/cuda.h"
#include "packalloc/backends/opencl.h"
#include "packalloc/c_record.h"

namespace packalloc {

absl::StatusOr<void*> NativeHandle(const PackedAllocator& allocator, const std::string& key) {
  if (auto native = Find<NativeHandles>(allocator)) return native->Get(key);
  std::vector<std::pair<std::string, void*>> known;
  if (auto cuda = Find<CudaNative>(allocator)) {
    known = {{"cuda.context", cuda->context()}, {"cuda.stream", cuda->stream()}};
  }
  if (auto opencl = Find<OpenClNative>(allocator)) {
    known = {{"opencl.platform", opencl->platform()},
             {"opencl.device", opencl->device()},
             {"opencl.context", opencl->context()},
             {"opencl.queue", opencl->queue()}};
  }
  std::string names;
  for (const auto& [name, handle] : known) {
    if (name == key) return handle;
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  return absl::NotFoundError(absl::StrCat(allocator.name(), " has no native handle ", Quoted(key), "; it has ",
                                          names.empty() ? "none" : names));
}

}  // namespace packalloc
