// The violations that were found.
#ifndef PACKALLOC_TEST_FAKE_CUDA_REPORT_H_
#define PACKALLOC_TEST_FAKE_CUDA_REPORT_H_

#include <cstdint>
#include <deque>
#include <string>

#include "test/fake_cuda/settings.h"

namespace fake_cuda {

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...);

const char* KindName(fake_cuda_kind kind);

class Report {
 public:
  // Counts one violation, prints it unless settings.quiet, aborts if settings.abort_on_violation.
  void Add(const Settings& settings, fake_cuda_kind kind, const std::string& what);
  void Clear();

  uint64_t count() const { return texts_.size(); }
  uint64_t count(fake_cuda_kind kind) const { return by_kind_[kind]; }
  const char* text(size_t index) const { return index < texts_.size() ? texts_[index].c_str() : nullptr; }
  std::string All() const;

 private:
  std::deque<std::string> texts_;  // a deque: the texts stay where they are
  uint64_t by_kind_[FAKE_CUDA_KIND_COUNT] = {};
};

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_REPORT_H_
