#include "backends/opencl/queue.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/opencl/api.h"
#include "backends/opencl/context.h"
#include "backends/opencl/devices.h"
#include "backends/opencl/error.h"
#include "lib/checked_math.h"
#include "lib/parse.h"
#include "packalloc/backends/opencl.h"

namespace packalloc::opencl {
namespace {

// What the caller's queue says of itself.
struct Adopted {
  cl_context context = nullptr;
  cl_device_id device = nullptr;
  bool out_of_order = false;
};

absl::StatusOr<Adopted> Inspect(const Api& cl, cl_command_queue queue) {
  constexpr char kCall[] = "clGetCommandQueueInfo";
  const auto get = cl.clGetCommandQueueInfo;
  const auto context = GetInfo<cl_context>(get, queue, CL_QUEUE_CONTEXT, kCall);
  if (!context.ok()) return context.status();
  const auto device = GetInfo<cl_device_id>(get, queue, CL_QUEUE_DEVICE, kCall);
  if (!device.ok()) return device.status();
  const auto properties = GetInfo<cl_command_queue_properties>(get, queue, CL_QUEUE_PROPERTIES, kCall);
  if (!properties.ok()) return properties.status();
  constexpr cl_command_queue_properties kOnDevice = 1 << 2;  // CL_QUEUE_ON_DEVICE of OpenCL 2.0
  if ((*properties & kOnDevice) != 0) {
    return absl::InvalidArgumentError("the given queue is a device-side queue, on which a host cannot enqueue");
  }
  return Adopted{*context, *device, (*properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0};
}

absl::StatusOr<std::vector<cl_device_id>> DevicesIn(const Api& cl, cl_context context) {
  std::size_t size = 0;
  absl::Status status =
      ToStatus(cl.clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, nullptr, &size), "clGetContextInfo");
  std::vector<cl_device_id> ids(size / sizeof(cl_device_id));
  if (status.ok()) {
    status = ToStatus(cl.clGetContextInfo(context, CL_CONTEXT_DEVICES, size, ids.data(), nullptr), "clGetContextInfo");
  }
  if (!status.ok()) return status;
  return ids;
}

// The device that `options` mean, where they bring a context or a queue.
absl::StatusOr<cl_device_id> AdoptedDevice(const Api& cl, const OpenClOptions& options, const Adopted& adopted,
                                           const absl::StatusOr<std::vector<Device>>& all) {
  std::vector<cl_device_id> allowed = {adopted.device};
  if (options.queue == nullptr) {
    absl::StatusOr<std::vector<cl_device_id>> ids = DevicesIn(cl, options.context);
    if (!ids.ok()) return ids.status();
    if (ids->empty()) return absl::InvalidArgumentError("the given context has no device");
    allowed = *std::move(ids);
  }
  if (options.device.empty()) return allowed.front();
  if (!all.ok()) return all.status();
  const absl::StatusOr<std::size_t> index = ChooseDevice(*all, options.device);
  if (!index.ok()) return index.status();
  if (std::find(allowed.begin(), allowed.end(), (*all)[*index].id) == allowed.end()) {
    return absl::InvalidArgumentError(absl::StrCat("the given ", options.queue != nullptr ? "queue" : "context",
                                                   " is not one of device ", Quoted(options.device)));
  }
  return (*all)[*index].id;
}

absl::StatusOr<cl_command_queue> QueueFor(const Api& cl, const OpenClOptions& options, cl_context context,
                                          cl_device_id device) {
  if (options.queue != nullptr) {
    absl::Status status = ToStatus(cl.clRetainCommandQueue(options.queue), "clRetainCommandQueue");
    if (!status.ok()) return status;
    return options.queue;
  }
  cl_int code = CL_SUCCESS;
  cl_command_queue made = cl.clCreateCommandQueue(context, device, 0, &code);
  if (code != CL_SUCCESS) return ToStatus(code, "clCreateCommandQueue");
  return made;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Queue>> Queue::Open(const OpenClOptions& options) {
  if (options.max_copy_bytes == 0) return absl::InvalidArgumentError("OpenClOptions::max_copy_bytes is 0");
  absl::StatusOr<const Api*> loaded = LoadApi();
  if (!loaded.ok()) return loaded.status();
  const Api& cl = **loaded;
  ReleaseKept();
  const bool adopts = options.queue != nullptr || options.context != nullptr;

  absl::StatusOr<std::vector<Device>> all = ListDevices(cl);
  if (!adopts && !all.ok()) return all.status();
  absl::StatusOr<Adopted> adopted = Adopted{};
  absl::StatusOr<Device> device = Device{};
  if (adopts) {
    if (options.queue != nullptr) adopted = Inspect(cl, options.queue);
    if (!adopted.ok()) return adopted.status();
    if (options.queue != nullptr && options.context != nullptr && adopted->context != options.context) {
      return absl::InvalidArgumentError("the given queue belongs to another context than the given one");
    }
    absl::StatusOr<cl_device_id> id = AdoptedDevice(cl, options, *adopted, all);
    if (!id.ok()) return id.status();
    device = DescribeDevice(cl, *id);
    if (!device.ok()) return device.status();
  } else {
    absl::StatusOr<std::size_t> index = ChooseDevice(*all, options.device);
    if (!index.ok()) return index.status();
    device = (*all)[*index];
  }
  if (!IsPowerOfTwo(device->alignment)) {
    return absl::UnavailableError(
        absl::StrCat(device->name, " reports an alignment of ", device->alignment, " bytes, not a power of two"));
  }

  cl_context given = options.context != nullptr ? options.context : adopted->context;
  absl::StatusOr<std::shared_ptr<Context>> context =
      adopts ? Context::Adopt(cl, given) : Context::ForPlatform(cl, *device, *all);
  if (!context.ok()) return context.status();
  absl::StatusOr<cl_command_queue> handle = QueueFor(cl, options, (*context)->handle(), device->id);
  if (!handle.ok()) return handle.status();

  std::shared_ptr<Queue> queue(new Queue(cl, *std::move(context), *std::move(device), *handle, options));
  queue->out_of_order_ = adopted->out_of_order;
  queue->name_ = "CL";
  for (std::size_t i = 0; all.ok() && i < all->size(); ++i) {
    if ((*all)[i].id == queue->device_.id) queue->name_ = absl::StrCat("CL:", i);
  }
  return queue;
}

Queue::Queue(const Api& cl, std::shared_ptr<Context> context, Device device, cl_command_queue queue,
             const OpenClOptions& options)
    : cl_(cl),
      context_(std::move(context)),
      device_(std::move(device)),
      queue_(queue),
      max_copy_bytes_(options.max_copy_bytes),
      commit_(options.commit) {}

Queue::~Queue() {
  Release([release = cl_.clReleaseCommandQueue, queue = queue_] { return release(queue); });
}

absl::Status Queue::CheckReady() const {
  if (absl::Status usable = CheckUsable(); !usable.ok()) return usable;
  if (lost_.load(std::memory_order_relaxed)) [[unlikely]] {
    return absl::UnavailableError(absl::StrCat(name_, " (", device_.name, ") was lost earlier; open it anew"));
  }
  return absl::OkStatus();
}

absl::Status Queue::Result(cl_int code, absl::string_view what) {
  if (code == CL_SUCCESS) [[likely]]
    return absl::OkStatus();
  if (IsDeviceLost(code)) lost_ = true;
  return ToStatus(code, absl::StrCat(name_, " (", device_.name, "): ", what));
}

absl::StatusOr<Root> Queue::CheckOwned(const OpenClBuf& buf, absl::string_view operation) const {
  std::optional<Root> root = context_->Find(buf.root);
  if (!root.has_value() || root->owner_id != this) {
    return absl::InvalidArgumentError(
        absl::StrCat(operation, ": the buffer was not allocated by this record of ", name_, ", or freed"));
  }
  if (!InRange(buf.offset, buf.nbytes, root->nbytes)) {
    return absl::OutOfRangeError(absl::StrCat(operation, ": ", buf.nbytes, " bytes at byte offset ", buf.offset,
                                              " do not fit the buffer object of ", root->nbytes, " bytes"));
  }
  return *std::move(root);
}

}  // namespace packalloc::opencl
