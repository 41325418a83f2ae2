#include "tools/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace packalloc {
namespace {

constexpr std::chrono::milliseconds kQuick(500);
constexpr std::chrono::milliseconds kBetween(100);
constexpr int kWidth = 30;

}  // namespace

Progress::Progress(std::string label)
    : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1), next_(Clock::now() + kQuick) {}

void Progress::Show(double part) {
  if (!terminal_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + kBetween;
  shown_ = true;
  part = std::clamp(part, 0.0, 1.0);
  const int full = static_cast<int>(part * kWidth);
  absl::FPrintF(stderr, "\r\x1b[K%s [%s%s] %.0f %%", label_, std::string(full, '#'), std::string(kWidth - full, '.'),
                part * 100);
  std::fflush(stderr);
}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

}  // namespace packalloc
