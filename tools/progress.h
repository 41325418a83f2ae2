// A bar on a terminal's stderr for work that takes long; nothing where stderr is no terminal, or where the work is
// quick.
//
//   Progress progress("replay CPU+lru");
//   progress.Show(0.25);
//   progress.Show(done, total);      // bytes: with their rate and the time left
#ifndef PACKALLOC_TOOLS_PROGRESS_H_
#define PACKALLOC_TOOLS_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

namespace packalloc {

// One thread at a time. Its destructor clears the line.
class Progress {
 public:
  explicit Progress(const std::string& label);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // `part` of the work is done, 0 to 1. Cheap to call often.
  void Show(double part);
  // `done` of `total` bytes.
  void Show(std::uint64_t done, std::uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  bool Due(Clock::time_point now);
  void Draw(double part, const std::string& note);

  std::string label_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point start_;
  Clock::time_point next_;
};

}  // namespace packalloc

#endif  // PACKALLOC_TOOLS_PROGRESS_H_
