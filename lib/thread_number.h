// A number for each thread.
#ifndef PACKALLOC_LIB_THREAD_NUMBER_H_
#define PACKALLOC_LIB_THREAD_NUMBER_H_

#include <atomic>
#include <cstdint>

namespace packalloc {

namespace internal {
inline constinit std::atomic<std::uint32_t> last_thread_number{0};
inline constinit thread_local std::uint32_t thread_number = 0;
}  // namespace internal

// The calling thread's, from 1 on. Never reused, unlike std::thread::id.
inline std::uint32_t ThreadNumber() {
  if (internal::thread_number == 0) [[unlikely]]
    internal::thread_number = internal::last_thread_number.fetch_add(1, std::memory_order_relaxed) + 1;
  return internal::thread_number;
}

}  // namespace packalloc

#endif  // PACKALLOC_LIB_THREAD_NUMBER_H_
