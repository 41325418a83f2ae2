// What a piece of a test writes to stderr.
#ifndef PACKALLOC_TEST_STDERR_OF_H_
#define PACKALLOC_TEST_STDERR_OF_H_

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace packalloc {

template <typename Action>
std::string StderrOf(Action&& action) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  std::fflush(stderr);
  const int saved = dup(STDERR_FILENO);
  dup2(fileno(file), STDERR_FILENO);
  action();
  std::fflush(stderr);
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text.push_back(static_cast<char>(c));
  std::fclose(file);
  return text;
}

}  // namespace packalloc

#endif  // PACKALLOC_TEST_STDERR_OF_H_
