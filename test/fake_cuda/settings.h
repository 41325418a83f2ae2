// The settings of the fake driver and where they come from: FAKE_CUDA_* in the environment, then fake_cuda.h.
#ifndef PACKALLOC_TEST_FAKE_CUDA_SETTINGS_H_
#define PACKALLOC_TEST_FAKE_CUDA_SETTINGS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "test/fake_cuda/fake_cuda.h"

namespace fake_cuda {

inline constexpr int kMaxDevices = 16;

// One injected failure.
struct Failure {
  std::string function;
  uint64_t nth = 0;  // 0: every
  int code = 0;
  uint64_t seen = 0;
};

struct Settings {
  fake_cuda_schedule schedule = FAKE_CUDA_LAZY;
  fake_cuda_pageable pageable = FAKE_CUDA_PAGEABLE_LATE;
  fake_cuda_mode mode = FAKE_CUDA_MODE_NORMAL;
  int version = 13000;
  int devices = 1;
  size_t capacity[kMaxDevices];
  size_t pinned_capacity = size_t{1} << 40;
  std::set<std::pair<int, int>> peers;
  std::vector<Failure> failures;
  std::string leaks = "all";
  bool quiet = false;
  int exit_on_violation = 0;  // the exit status, 0: as the program wants
  bool abort_on_violation = false;

  Settings();
};

// Reads FAKE_CUDA_*. What it cannot read is one line on stderr and the default.
Settings SettingsFromEnvironment();

// Whether a real device's context is lost after `code`.
bool KillsContext(int code);

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_SETTINGS_H_
