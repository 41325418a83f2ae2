// An allocator of TVM-FFI's objects over a mock, installed for a test; at the end uninstalled, with all memory back,
// also what failed on the way.
//
//   Installed s;
//   void* object = FakeTvmFfiMake(48, 8, 200);
//   CHECK(s.objects.stats().live == 1);
#ifndef PACKALLOC_TEST_INTEROP_INSTALLED_OBJECTS_H_
#define PACKALLOC_TEST_INTEROP_INSTALLED_OBJECTS_H_

#include <doctest/doctest.h>

#include <memory>
#include <utility>

#include "packalloc/backends/mock.h"
#include "packalloc/interop/tvm_ffi.h"
#include "packalloc/packed_allocator.h"

namespace packalloc {

struct Installed {
  explicit Installed(const TvmFfiObjectOptions& options = {}, MockOptions mock_options = {.log_calls = false}) {
    auto record = MockAllocator(std::move(mock_options));
    mock = Find<MockControl>(record);
    auto made = InstallTvmFfiObjectAllocator(*Pack(record), options);
    REQUIRE_MESSAGE(made.ok(), made.status().ToString());
    objects = *made;
  }
  ~Installed() {
    mock->ClearFailures();
    CHECK(objects.stats().live == 0);
    CHECK(objects.stats().live_bytes == 0);
    CHECK(objects.LeakReport().empty());
    CHECK(objects.Trim().ok());
    CHECK(objects.stats().slabs == 0);
    CHECK(mock->live_bytes() == 0);
    CHECK(mock->misuses().empty());
    if (installed) CHECK(objects.Uninstall().ok());
  }
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;

  std::shared_ptr<MockControl> mock;
  TvmFfiObjectAllocator objects;
  bool installed = true;  // false: the test has uninstalled it
};

}  // namespace packalloc

#endif  // PACKALLOC_TEST_INTEROP_INSTALLED_OBJECTS_H_
