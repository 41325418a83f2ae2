#include <dlfcn.h>

#include <cstdlib>

#include "test/backends/opencl_fault_layer/fault_layer.h"

namespace packalloc::testing {

FaultLayerControl* LoadFaultLayer(const char* path) {
  setenv("OPENCL_LAYERS", path, /*overwrite=*/1);
  void* library = dlopen(path, RTLD_NOW);
  if (library == nullptr) return nullptr;
  auto* control = reinterpret_cast<FaultLayerControl* (*)()>(dlsym(library, "packalloc_fault_layer_control"));
  return control == nullptr ? nullptr : control();
}

}  // namespace packalloc::testing
