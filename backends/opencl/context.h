// One cl_context as all records over it share it: its transfer domain, and what is known of each live buffer object.
#ifndef PACKALLOC_BACKENDS_OPENCL_CONTEXT_H_
#define PACKALLOC_BACKENDS_OPENCL_CONTEXT_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "backends/opencl/api.h"
#include "backends/opencl/devices.h"

namespace packalloc::opencl {

class Queue;

// A buffer object that a record of the context holds a reference of. Values of handles are reused, so an entry lives
// exactly as long as our reference.
struct Root {
  std::weak_ptr<Queue> owner;  // whose operations on it need no further ordering
  const Queue* owner_id = nullptr;
  std::size_t nbytes = 0;
  std::byte* host = nullptr;    // the caller's memory under it (external_ptr), or null
  bool host_memory = false;     // that, or memory that the driver was asked to make accessible to the CPU
  std::byte* mapped = nullptr;  // what host_ptr answers; its bytes are made current by each synchronize
};

class Context {
 public:
  // The context for all devices of `device`'s platform, made where no record holds it.
  static absl::StatusOr<std::shared_ptr<Context>> ForPlatform(const Api& cl, const Device& device,
                                                              const std::vector<Device>& all);
  // The caller's context, retained.
  static absl::StatusOr<std::shared_ptr<Context>> Adopt(const Api& cl, cl_context handle);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cl_context handle() const { return handle_; }
  std::uint32_t transfer_domain() const { return transfer_domain_; }

  // False where it is already there.
  bool Add(cl_mem mem, Root root);
  std::optional<Root> Find(cl_mem mem) const;
  // Takes `mem` out and returns its sub-buffers for the caller to release; nullopt where it is not there.
  std::optional<std::vector<cl_mem>> Remove(cl_mem mem);

  // Those of `queue` whose bytes the CPU looks at.
  std::vector<cl_mem> ListMapped(const Queue* queue) const;
  void SetMapped(cl_mem mem, std::byte* mapped);
  // Waits until nobody else has claimed `mem`, and claims it until Unclaim or Remove: mapping it from two threads at
  // once confuses drivers, and free must not overtake a mapping. Nullopt for what is not one of those buffers (any
  // more).
  std::optional<Root> Claim(cl_mem mem, const Queue* queue);
  void Unclaim(cl_mem mem);

  // The sub-buffer of that range made earlier, or null; and `made` (or the one that another thread added meanwhile).
  cl_mem FindSubBuffer(cl_mem root, std::size_t offset, std::size_t nbytes) const;
  cl_mem AddSubBuffer(cl_mem root, std::size_t offset, std::size_t nbytes, cl_mem made);

 private:
  struct Entry {
    Root root;
    bool claimed = false;
    std::map<std::pair<std::size_t, std::size_t>, cl_mem> sub_buffers;  // by offset and size; one reference each
  };

  Context(const Api& cl, cl_context handle);
  static std::shared_ptr<Context> Share(const Api& cl, cl_context handle);

  const Api& cl_;
  const cl_context handle_;  // one reference
  const std::uint32_t transfer_domain_;
  mutable std::mutex mutex_;           // guards what follows
  std::condition_variable unclaimed_;  // one that was claimed is so no more, or is gone
  absl::flat_hash_map<cl_mem, Entry> roots_;
  std::size_t mapped_ = 0;
};

}  // namespace packalloc::opencl

#endif  // PACKALLOC_BACKENDS_OPENCL_CONTEXT_H_
