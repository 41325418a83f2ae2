// A mock behind a device name of its own, for tests that go through the C API; its other side in C++.
#ifndef PACKALLOC_TEST_C_MOCK_DEVICE_H_
#define PACKALLOC_TEST_C_MOCK_DEVICE_H_

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "packalloc/backends/mock.h"
#include "packalloc/c/packalloc.h"
#include "packalloc/registry.h"

namespace packalloc::testing {

// Opens the mock anew under `layers`, "" or "+lru". At the end the mock must have its memory back.
class MockDevice {
 public:
  explicit MockDevice(const std::string& layers = "", MockOptions options = {}) {
    static int last = 0;
    Backend backend;
    backend.name = "CMOCK" + std::to_string(++last);
    Allocator<MockBuf> record = MockAllocator(std::move(options));
    mock_ = Find<MockControl>(record);
    // Only the open allocators hold the record, so that the mock sees the end of them.
    auto once =
        std::make_shared<std::unique_ptr<Allocator<MockBuf>>>(std::make_unique<Allocator<MockBuf>>(std::move(record)));
    backend.open = [once](const OpenRequest&) { return Pack(*std::exchange(*once, nullptr)); };
    REQUIRE(Register(backend).ok());
    REQUIRE_MESSAGE(packalloc_open((backend.name + layers).c_str(), &handle_) == PACKALLOC_OK, packalloc_last_error());
    Shutdown();
  }
  MockDevice(const MockDevice&) = delete;
  MockDevice& operator=(const MockDevice&) = delete;
  ~MockDevice() {
    Close();
    CHECK(mock_->live_blocks() == expected_live);
    CHECK(mock_->misuses().empty());
  }

  packalloc_allocator* handle() const { return handle_; }
  MockControl& mock() const { return *mock_; }
  void Close() {
    if (handle_ != nullptr) CHECK(packalloc_close(std::exchange(handle_, nullptr)) == PACKALLOC_OK);
  }

  packalloc_buffer* Alloc(std::size_t nbytes) const {
    packalloc_buffer* buffer = nullptr;
    REQUIRE_MESSAGE(packalloc_alloc(handle_, nbytes, nullptr, &buffer) == PACKALLOC_OK, packalloc_last_error());
    return buffer;
  }

  std::size_t expected_live = 0;  // at the end

 private:
  std::shared_ptr<MockControl> mock_;
  packalloc_allocator* handle_ = nullptr;
};

inline bool ErrorHas(const std::string& text) {
  const bool found = std::string(packalloc_last_error()).find(text) != std::string::npos;
  if (!found) MESSAGE(std::string(packalloc_last_error()));
  return found;
}

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_C_MOCK_DEVICE_H_
