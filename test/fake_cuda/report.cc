#include "test/fake_cuda/report.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace fake_cuda {

std::string Format(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(arguments);
  va_end(again);
  return text;
}

const char* KindName(fake_cuda_kind kind) {
  switch (kind) {
    case FAKE_CUDA_OUT_OF_BOUNDS:
      return "out-of-bounds";
    case FAKE_CUDA_USE_AFTER_FREE:
      return "use-after-free";
    case FAKE_CUDA_DOUBLE_FREE:
      return "double-free";
    case FAKE_CUDA_WRONG_FREE:
      return "wrong-free";
    case FAKE_CUDA_FOREIGN_POINTER:
      return "foreign-pointer";
    case FAKE_CUDA_FOREIGN_DEVICE:
      return "foreign-device";
    case FAKE_CUDA_BAD_HANDLE:
      return "bad-handle";
    case FAKE_CUDA_NO_CONTEXT:
      return "no-context";
    case FAKE_CUDA_WRONG_CONTEXT:
      return "wrong-context";
    case FAKE_CUDA_PENDING_WORK:
      return "pending-work";
    case FAKE_CUDA_SOURCE_CHANGED:
      return "source-changed";
    case FAKE_CUDA_DESTINATION_TOUCHED:
      return "destination-touched";
    case FAKE_CUDA_UNORDERED:
      return "unordered";
    case FAKE_CUDA_CAPTURE:
      return "capture";
    case FAKE_CUDA_FORKED:
      return "forked";
    case FAKE_CUDA_LEAK:
      return "leak";
    case FAKE_CUDA_MISUSE:
      return "misuse";
    case FAKE_CUDA_KIND_COUNT:
      break;
  }
  return "unknown";
}

void Report::Add(const Settings& settings, fake_cuda_kind kind, const std::string& what) {
  ++by_kind_[kind];
  texts_.push_back(std::string(KindName(kind)) + ": " + what);
  if (!settings.quiet || settings.abort_on_violation) std::fprintf(stderr, "fake_cuda: %s\n", texts_.back().c_str());
  if (settings.abort_on_violation) std::abort();
}

void Report::Clear() {
  texts_.clear();
  for (uint64_t& count : by_kind_) count = 0;
}

std::string Report::All() const {
  std::string all;
  for (const std::string& text : texts_) all += text + "\n";
  return all;
}

}  // namespace fake_cuda
