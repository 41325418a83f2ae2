// For tests of the OpenCL backend that need the fault layer: linking with_fault_layer.cc gives the program its main.
#ifndef PACKALLOC_TEST_BACKENDS_OPENCL_WITH_FAULT_LAYER_H_
#define PACKALLOC_TEST_BACKENDS_OPENCL_WITH_FAULT_LAYER_H_

#include "test/backends/opencl_fault_layer/fault_layer.h"

namespace packalloc::testing {

// Never null while tests run.
extern FaultLayerControl* layer;

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_BACKENDS_OPENCL_WITH_FAULT_LAYER_H_
