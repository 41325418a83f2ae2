// Which sanitizers a test is built with, where a case must know: g++ says it by macros, clang by features.
#ifndef PACKALLOC_TEST_SANITIZERS_H_
#define PACKALLOC_TEST_SANITIZERS_H_

#ifdef __has_feature
#define PACKALLOC_HAS_FEATURE(feature) __has_feature(feature)
#else
#define PACKALLOC_HAS_FEATURE(feature) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || PACKALLOC_HAS_FEATURE(address_sanitizer)
#define PACKALLOC_WITH_ASAN 1
#else
#define PACKALLOC_WITH_ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || PACKALLOC_HAS_FEATURE(thread_sanitizer)
#define PACKALLOC_WITH_TSAN 1
#else
#define PACKALLOC_WITH_TSAN 0
#endif

// Whether a child may be forked while other threads allocate: both sanitizers leave their own allocator's locks as they
// were, held by threads that the child has not.
#define PACKALLOC_FORKS_AMONG_THREADS (!PACKALLOC_WITH_ASAN && !PACKALLOC_WITH_TSAN)

#endif  // PACKALLOC_TEST_SANITIZERS_H_
