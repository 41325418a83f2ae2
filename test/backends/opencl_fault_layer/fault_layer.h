// A layer between the OpenCL loader and the drivers, for tests: counts the calls of each entry point, makes a chosen
// one fail, and keeps a table of live objects. Loaded by the loader itself (OPENCL_LAYERS=<this library>) before the
// first OpenCL call of the process; reached by LoadFaultLayer.
//
//   FaultLayerControl* layer = LoadFaultLayer(path);   // first thing in main
//   layer->Fail("clCreateBuffer", 2, CL_OUT_OF_RESOURCES);
//   ...
//   CHECK(layer->live_objects() == 0);
#ifndef PACKALLOC_TEST_BACKENDS_OPENCL_FAULT_LAYER_FAULT_LAYER_H_
#define PACKALLOC_TEST_BACKENDS_OPENCL_FAULT_LAYER_FAULT_LAYER_H_

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl.h>

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace packalloc::testing {

// Thread-safe. Lives in the layer's library.
class FaultLayerControl {
 public:
  virtual ~FaultLayerControl() = default;

  // The entry points that are watched.
  virtual std::vector<std::string> entry_points() const = 0;
  // Calls since the last Reset; of all entry points, or of one.
  virtual std::size_t calls() const = 0;
  virtual std::size_t calls(const std::string& entry_point) const = 0;

  // From the `first` call of the entry point on (1: the next one), `count` calls fail with `code` and do nothing. An
  // empty name means all entry points together. Replaces what was set before.
  virtual void Fail(const std::string& entry_point, std::size_t first, cl_int code, std::size_t count = 1) = 0;
  static constexpr std::size_t kForEver = std::numeric_limits<std::size_t>::max();
  virtual std::size_t failures() const = 0;  // since the last Reset

  // Bytes of buffers that may live at a time; one more byte is CL_MEM_OBJECT_ALLOCATION_FAILURE.
  virtual void set_capacity(std::size_t nbytes) = 0;

  // Contexts, queues and memory objects whose references were not all given back.
  virtual std::size_t live_objects() const = 0;
  virtual std::size_t live_buffers() const = 0;  // of these, memory objects
  virtual std::string Describe() const = 0;      // what is alive, for messages
  // Mappings of buffers that were not undone.
  virtual std::size_t mappings() const = 0;
  // Releases of what was not alive.
  virtual std::size_t bad_releases() const = 0;

  // Forgets counts and failures to come; what is alive stays.
  virtual void Reset() = 0;
};

// Sets OPENCL_LAYERS to the library at `path` and loads it; null where that fails. A loader without layers never calls
// it: then no call is counted.
FaultLayerControl* LoadFaultLayer(const char* path);

}  // namespace packalloc::testing

#endif  // PACKALLOC_TEST_BACKENDS_OPENCL_FAULT_LAYER_FAULT_LAYER_H_
