// What a forked child finds. Under TSan, which allows such a child no new thread, leave such cases out.
#ifndef PACKALLOC_TEST_IN_CHILD_H_
#define PACKALLOC_TEST_IN_CHILD_H_

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace packalloc {

// Whether `check` holds in a child that is forked here. A child that hangs is ended, and holds nothing.
template <typename Check>
bool HoldsInChild(Check check) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    alarm(20);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace packalloc

#endif  // PACKALLOC_TEST_IN_CHILD_H_
