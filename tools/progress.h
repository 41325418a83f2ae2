// A bar on a terminal's stderr for work that takes long; nothing where stderr is no terminal, or where the work is
// quick.
//
//   Progress progress("replay CPU+lru");
//   progress.Show(0.25);
#ifndef PACKALLOC_TOOLS_PROGRESS_H_
#define PACKALLOC_TOOLS_PROGRESS_H_

#include <chrono>
#include <string>

namespace packalloc {

// One thread at a time. Its destructor clears the line.
class Progress {
 public:
  explicit Progress(std::string label);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  // `part` of the work is done, 0 to 1. Cheap to call often.
  void Show(double part);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point next_;
};

}  // namespace packalloc

#endif  // PACKALLOC_TOOLS_PROGRESS_H_
