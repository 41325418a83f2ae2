// The life of contexts.
#ifndef PACKALLOC_TEST_FAKE_CUDA_CONTEXT_H_
#define PACKALLOC_TEST_FAKE_CUDA_CONTEXT_H_

#include "test/fake_cuda/driver.h"

namespace fake_cuda {

std::shared_ptr<Context> NewContext(Driver& driver, int device, bool primary);
// Ends a context and all that belongs to it; what is still alive is reported as a leak.
void EndContext(Call& call, const std::shared_ptr<Context>& context);

// Breaks the circles between a context and its default streams.
void RetireDefaultStreams(Context& context);

}  // namespace fake_cuda

#endif  // PACKALLOC_TEST_FAKE_CUDA_CONTEXT_H_
