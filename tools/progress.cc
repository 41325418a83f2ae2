#include "tools/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "lib/parse.h"

namespace packalloc {
namespace {

constexpr std::chrono::milliseconds kQuick(500);
constexpr std::chrono::milliseconds kBetween(100);
constexpr int kWidth = 30;

}  // namespace

Progress::Progress(const std::string& label)
    : label_(Printable(label)), terminal_(isatty(STDERR_FILENO) == 1), start_(Clock::now()), next_(start_ + kQuick) {}

void Progress::Show(double part) {
  if (Due(Clock::now())) Draw(part, "");
}

void Progress::Show(std::uint64_t done, std::uint64_t total) {
  const Clock::time_point now = Clock::now();
  if (!Due(now)) return;
  const double rate = static_cast<double>(done) / std::chrono::duration<double>(now - start_).count();
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  Draw(total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total),
       absl::StrFormat(" %.2f GB/s, %.0f s left", rate / 1e9, left));
}

bool Progress::Due(Clock::time_point now) {
  if (!terminal_ || now < next_) return false;
  next_ = now + kBetween;
  return true;
}

void Progress::Draw(double part, const std::string& note) {
  shown_ = true;
  part = std::clamp(part, 0.0, 1.0);
  const int full = static_cast<int>(part * kWidth);
  absl::FPrintF(stderr, "\r\x1b[K%s [%s%s] %.0f %%%s", label_, std::string(full, '#'), std::string(kWidth - full, '.'),
                part * 100, note);
  std::fflush(stderr);
}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

}  // namespace packalloc
