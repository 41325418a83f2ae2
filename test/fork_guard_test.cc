#include "lib/fork_guard.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <latch>
#include <thread>

#include "test/in_child.h"
#include "test/sanitizers.h"

namespace packalloc {
namespace {

#if !PACKALLOC_WITH_TSAN
// Stops whoever makes something in this process until the test has forked.
struct Halt {
  std::latch inside{1};
  std::latch go_on{1};
  const pid_t process = getpid();
  void Pass() {
    if (getpid() != process) return;
    inside.count_down();
    go_on.wait();
  }
};

Halt making_once;
int Make() {
  making_once.Pass();
  return 7;
}

TEST_CASE("what cannot be made again is missing in a child that was forked while it was made") {
  std::thread maker([] { CHECK(*OnceUnlessForked<&Make>() == 7); });
  making_once.inside.wait();
  CHECK(HoldsInChild([] { return OnceUnlessForked<&Make>() == nullptr; }));
  making_once.go_on.count_down();
  maker.join();
  CHECK(HoldsInChild([] { return *OnceUnlessForked<&Make>() == 7; }));
}

Halt making_object;
struct Object {
  Object() { making_object.Pass(); }
};

TEST_CASE("an object of the process is made again in a child that was forked while it was made") {
  Object* made = nullptr;
  std::thread maker([&] { made = &OneOfTheProcess<Object>(); });
  making_object.inside.wait();
  CHECK(HoldsInChild([] { return &OneOfTheProcess<Object>() == &OneOfTheProcess<Object>(); }));
  making_object.go_on.count_down();
  maker.join();
  CHECK(made == &OneOfTheProcess<Object>());
}
#endif

}  // namespace
}  // namespace packalloc
